"""The time that is left travels with a call, in its ``_meta``, under a key of ours.

The value is a duration and no time of day, so the clocks of the two sides need not agree. The receiver's deadline is
later than the caller's, by the time that the message took and by a grace, so no caller that still waits is left without
a reply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import trio

from ..protocol.methods import METHODS

REMAINING_MS: Final = "trio-mcp/remainingMs"
"""Whole milliseconds until the caller gives up, counted from the arrival of the request; 0 and more."""

_LONGEST: Final = 10**12
_AT_ONCE: Final = frozenset({"initialize", "server/discover", "ping", "subscriptions/listen"})
"""Methods that run no handler of an author."""
_TRAVELS_WITH: Final = frozenset(METHODS) - _AT_ONCE


def with_remaining(method: str, params: dict[str, Any] | None, deadline: float) -> dict[str, Any] | None:
    """Return ``params`` with the time from now to ``deadline`` (`trio.current_time`) in ``_meta``. Without a deadline,
    or for a method with which no time travels, return ``params`` unchanged."""
    if deadline == math.inf or method not in _TRAVELS_WITH:
        return params
    params = params or {}
    left = deadline - trio.current_time()
    remaining = math.ceil(left * 1000) if left > 0 else 0  # left is -inf in a task that is cancelled already
    return {**params, "_meta": {REMAINING_MS: remaining, **(params.get("_meta") or {})}}


def due_of(meta: Mapping[str, Any]) -> float:
    """Return the time (`trio.current_time`) at which a request with ``meta``, received now, is over for its caller;
    `math.inf` when the caller gave no number of milliseconds, or no sensible number."""
    remaining = meta.get(REMAINING_MS)
    if type(remaining) is not int or not 0 <= remaining <= _LONGEST:
        return math.inf
    return trio.current_time() + remaining / 1000
