"""Reading the hints of cacheable results (2026-07-28 caching)."""

from __future__ import annotations

import math
from typing import Any

from .fields import JSONObject
from .types.lifecycle import CacheScope


def ttl_ms_in(result: JSONObject) -> int:
    """Return the milliseconds for which a result is fresh; 0 for a missing or senseless value.

    TTL field: absent and negative SHOULD be 0. The schema has a number there, so fractions are no fault.
    """
    ttl: Any = result.get("ttlMs")
    if type(ttl) is float and math.isfinite(ttl):
        ttl = int(ttl)
    return ttl if type(ttl) is int and ttl > 0 else 0


def scope_in(result: JSONObject) -> CacheScope:
    """Return who may see a result; ``private``, the safe scope, for a missing or senseless value."""
    return "public" if result.get("cacheScope") == "public" else "private"


def with_good_hints(result: JSONObject) -> JSONObject:
    """Return ``result`` with each hint replaced by the value it counts as: a bad hint does not spoil the result."""
    good: JSONObject = {}
    if "ttlMs" in result:
        good["ttlMs"] = ttl_ms_in(result)
    if "cacheScope" in result:
        good["cacheScope"] = scope_in(result)
    return {**result, **good} if good else result
