"""LastFlush bounds the time in which the last replies of a connection go out."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import trio

LEAST_FLUSH: Final = 0.4
"""Seconds that the flush gets in any case. With the half second that a transport waits for the peer's own end, the sum
is less than the second that leaving may take."""
_HURRIED_FLUSH: Final = 0.1


class LastFlush:
    """The last flush of one connection: the flush gets the rest of the time to drain, and a moment in any case."""

    def __init__(self) -> None:
        self._end = math.inf
        self._least = LEAST_FLUSH
        self._scope = trio.CancelScope()

    def end_at(self, deadline: float) -> None:
        """Note that the time to drain is over at ``deadline``."""
        self._end = min(self._end, deadline)

    def hurry(self) -> None:
        """Allow no more than a moment: less than a second is left for everything."""
        now = trio.current_time()
        self._end, self._least, self._scope.deadline = now, _HURRIED_FLUSH, now + _HURRIED_FLUSH

    async def run(self, flushed: Callable[[], Awaitable[None]]) -> None:
        """Wait until ``flushed`` has returned or the time is over. May be called only once."""
        self._scope.deadline = max(self._end, trio.current_time() + self._least)
        with self._scope:
            await flushed()
