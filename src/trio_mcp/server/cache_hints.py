"""CacheHints: for how long, and for whom, a modern client may cache an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from ..protocol.methods import ROWS
from ..protocol.types.lifecycle import CacheScope

_LONGEST: Final = 2**53 - 1  # the largest integer that all readers of JSON agree on
_CACHEABLE: Final = tuple(row.name for row in ROWS if row.cacheable)


def _is_ttl(_: Any, __: Any, ttl_ms: int) -> None:
    # 2026-07-28 caching, TTL field: servers MUST provide a value of 0 or more. `True` is an int to Python only.
    if type(ttl_ms) is not int or not 0 <= ttl_ms <= _LONGEST:
        raise ValueError(f"ttl_ms is an integer from 0 to {_LONGEST}, not {ttl_ms!r}")


def _is_scope(_: Any, __: Any, scope: str) -> None:
    if scope not in ("public", "private"):
        raise ValueError(f"a cache scope is public or private, not {scope!r}")


@attrs.frozen
class CacheHints:
    """Hints on how clients may cache an answer (2026-07-28 caching). Raises `ValueError` for values out of range."""

    ttl_ms: int = attrs.field(default=0, validator=_is_ttl)
    """Milliseconds for which a client may take the answer for fresh. 0: the client asks each time."""
    scope: CacheScope = attrs.field(default="private", validator=_is_scope)
    """``public``: the answer holds nothing of any user, and caches may show the answer to all users. ``private``:
    caches may show the answer only to the user who asked. The scope is advice to caches and protects nothing by
    itself."""

    def but(self, ttl_ms: int | None, scope: CacheScope | None) -> CacheHints:
        """Return the same hints, each argument that is not `None` replacing the present value."""
        return CacheHints(self.ttl_ms if ttl_ms is None else ttl_ms, self.scope if scope is None else scope)


NOT_CACHED: Final = CacheHints()


def hints_by_method(default: CacheHints, special: Mapping[str, CacheHints]) -> Mapping[str, CacheHints]:
    """Return the hints for each method that has any. Raises `ValueError` for a method in ``special`` without hints."""
    if unknown := sorted(set(special) - set(_CACHEABLE)):
        raise ValueError(f"no cache hints go with {', '.join(unknown)}; they do with {', '.join(_CACHEABLE)}")
    return {method: special.get(method, default) for method in _CACHEABLE}
