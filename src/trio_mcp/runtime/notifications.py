"""NotificationQueue: the peer's notifications, handed to our callbacks one after another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import trio

from ..state.events import NotificationReceived
from .backlog import Backlog
from .on_demand import OnDemand

__all__ = ["NotificationQueue"]

_inside: ContextVar[frozenset[int]] = ContextVar("trio_mcp.inside_callbacks", default=frozenset())


class NotificationQueue:
    """Notifications in wire order, as many as ``backlog`` keeps; what it drops is counted.

    ``handle`` gets one at a time. What it raises goes to ``failed``, and the next one is handled.
    """

    def __init__(
        self,
        backlog: Backlog[NotificationReceived],
        handle: Callable[[NotificationReceived], Awaitable[None]],
        failed: Callable[[Exception], None],
    ) -> None:
        self._waiting = backlog
        self._handle = handle
        self._failed = failed
        self.task = OnDemand()
        """Does it, and is cancelled at the end, which ends the wait of all that wait to be caught up."""
        self._progressed = trio.lowlevel.ParkingLot()
        self._over = False
        self.received = 0
        """How many ever came."""
        self.handled = 0
        """How many of those are done with, the dropped ones included."""
        self.dropped = 0

    def put(self, event: NotificationReceived, size: int) -> None:
        """One has arrived, ``size`` bytes long."""
        self.received += 1
        if dropped := self._waiting.put(event, size):
            self.dropped += dropped
            self._done(dropped)
        self.task.wake(self._run)

    def _done(self, count: int = 1) -> None:
        self.handled += count
        if self._progressed:
            self._progressed.unpark_all()

    async def _run(self) -> None:
        _inside.set(_inside.get() | {id(self)})
        try:
            while True:
                while not self._waiting:
                    await self.task.sleep()
                event = self._waiting.take()
                try:
                    await self._handle(event)
                except Exception as error:
                    self._failed(error)
                self._done()
        finally:
            self._over = True
            self._progressed.unpark_all()

    def let_go(self) -> None:
        """The connection is over: nothing is handled any more."""
        del self._handle

    async def caught_up(self, count: int) -> None:
        """Wait until ``count`` of them are done with. Inside a callback it returns at once, since there the
        wait would be for the caller itself."""
        while self.handled < count and not self._over and id(self) not in _inside.get():
            await self._progressed.park()
