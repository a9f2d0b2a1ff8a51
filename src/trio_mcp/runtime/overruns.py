"""Overruns: cancelled requests whose cleanup takes longer than its grace."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from .request_scope import RequestScope

__all__ = ["Overruns"]


class Overruns:
    """Watches cancelled requests; ``report`` is called for each that has not ended ``grace`` seconds later."""

    def __init__(self, grace: float, report: Callable[[RequestScope], None]) -> None:
        self._grace = grace
        self._report = report
        self._watched: deque[tuple[float, RequestScope]] = deque()
        self._more = trio.lowlevel.ParkingLot()

    def watch(self, scope: RequestScope) -> None:
        """It was cancelled now."""
        self._watched.append((trio.current_time() + self._grace, scope))
        self._more.unpark()

    async def run(self) -> None:
        """Watch until cancelled. The grace is the same for all, so the oldest is always the next."""
        while True:
            while not self._watched:
                await self._more.park()
            due, scope = self._watched[0]
            if scope.is_over or due <= trio.current_time():
                self._watched.popleft()
                if not scope.is_over:
                    self._report(scope)
            else:
                await trio.sleep_until(due)
