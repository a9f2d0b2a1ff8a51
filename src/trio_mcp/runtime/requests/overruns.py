"""Overruns reports cancelled requests whose cleanup takes longer than its grace."""

from __future__ import annotations

from collections.abc import Callable

import trio

from ...concurrency.on_demand import OnDemand
from .request_scope import RequestScope

__all__ = ["Overruns"]


class Overruns:
    """Watches cancelled requests; ``report`` is called for each that has not ended ``grace`` seconds later."""

    def __init__(self, grace: float, report: Callable[[RequestScope], None]) -> None:
        self._grace = grace
        self._report = report
        self._watched: dict[RequestScope, float] = {}
        """Time at which each is due. The grace is the same for all, so the oldest is always the next."""
        self.task = OnDemand()

    def watch(self, scope: RequestScope) -> None:
        """Watch ``scope``, which was cancelled now."""
        self._watched[scope] = trio.current_time() + self._grace
        self.task.wake(self._run)

    def forget(self, scope: RequestScope) -> None:
        """Forget ``scope`` as soon as it has ended: while it is watched, all that it was called with is kept alive."""
        self._watched.pop(scope, None)

    def let_go(self) -> None:
        """Report nothing any more, since the connection is over."""
        del self._report

    async def _run(self) -> None:
        while True:
            while not self._watched:
                await self.task.sleep()
            due = next(iter(self._watched.values()))
            if due > trio.current_time():
                await trio.sleep_until(due)
            else:
                self._report_oldest()

    def _report_oldest(self) -> None:
        """Report the oldest, outside of `_run`, which sleeps next and would keep the request alive meanwhile."""
        scope = next(iter(self._watched))
        del self._watched[scope]
        self._report(scope)
