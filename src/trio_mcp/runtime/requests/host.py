"""RequestHost is the home of the handlers of a running server or client: a handler may outlive its connection, but not
its host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ...concurrency.wakeups import Alarms
from ...concurrency.workers import Workers
from ..cancellation import CancelCause
from ..limits import Limits
from ..load import Load
from .parking import Parking
from .request_scope import RequestScope


class RequestHost:
    """The parts that all connections of a running server share, and that a request needs when its connection is gone.

    A handler runs in the nursery of the host, and belongs to an `Exchange` for the moment. ``limits`` bound each
    connection and, in some cases, all connections together; ``load`` counts. ``stateless``: nothing is kept between
    requests. ``may_log``: handlers' log messages may go out.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        workers: Workers | None = None,
        load: Load | None = None,
        stateless: bool = False,
        may_log: bool = False,
    ) -> None:
        self.limits = limits
        self.load = load or Load()
        self.workers = workers or Workers(limits)
        """The worker threads that all connections share."""
        self.stateless = stateless
        self.may_log = may_log
        self.alarms = Alarms()
        self.parking = Parking[RequestScope](self.alarms, limits.retry_timeout, limits.max_parked, _expire)
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the nursery of the handlers open until cancelled. Parked handlers then get the cause of the cancel
        before any handler runs. Connections must end before."""
        await self.run_while(self._asleep, task_status=task_status)

    async def run_while(
        self, serve: Callable[..., Awaitable[None]], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Hold the nursery of the handlers open while ``serve`` runs, which is given ``task_status``. No checkpoint
        comes before ``serve``: however early a cancel comes, ``serve`` can close its resources."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.alarms.run)
            self._nursery = nursery
            try:
                await serve(task_status=task_status)
            finally:
                self._nursery = None
            nursery.cancel_scope.cancel(reason="nothing is served any more")

    async def _asleep(self, *, task_status: trio.TaskStatus[None]) -> None:
        def abort(_: Any) -> trio.lowlevel.Abort:  # called by trio before any task is woken
            for scope in self.parking:
                scope.end(CancelCause.SHUTDOWN, "the server has ended")
            return trio.lowlevel.Abort.SUCCEEDED

        task_status.started()
        await trio.lowlevel.wait_task_rescheduled(abort)

    @property
    def nursery(self) -> trio.Nursery:
        """The nursery of the handlers. Exists only while the host runs."""
        assert self._nursery is not None, "the host runs before its connections do"
        return self._nursery


def _expire(scope: RequestScope, reason: str) -> None:
    scope.runner.load.expired += 1
    scope.end(CancelCause.EXPIRED, reason)
