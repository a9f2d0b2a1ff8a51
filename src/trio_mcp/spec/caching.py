"""Reading the hints of cacheable results (2026-07-28 caching)."""

from __future__ import annotations

import math
from typing import Any

from .fields import JSONObject
from .lifecycle import CacheScope

__all__ = ["scope_in", "ttl_ms_in", "with_good_hints"]


def ttl_ms_in(result: JSONObject) -> int:
    """How many milliseconds a result is fresh; 0 where nothing sensible is said.

    TTL field: absent and negative SHOULD be 0. The schema has a number there, so fractions are no fault.
    """
    ttl: Any = result.get("ttlMs")
    if type(ttl) is float and math.isfinite(ttl):
        ttl = int(ttl)
    return ttl if type(ttl) is int and ttl > 0 else 0


def scope_in(result: JSONObject) -> CacheScope:
    """Whom a result may be shown to; ``private``, the safe one, where nothing sensible is said."""
    return "public" if result.get("cacheScope") == "public" else "private"


def with_good_hints(result: JSONObject) -> JSONObject:
    """``result`` with what it says in its hints replaced by what that means: a bad hint spoils no result."""
    good: JSONObject = {}
    if "ttlMs" in result:
        good["ttlMs"] = ttl_ms_in(result)
    if "cacheScope" in result:
        good["cacheScope"] = scope_in(result)
    return {**result, **good} if good else result
