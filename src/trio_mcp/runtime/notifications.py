"""NotificationQueue: the peer's notifications, handed to our callbacks one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import trio

from ..state.events import NotificationReceived

__all__ = ["NotificationQueue"]

_inside: ContextVar[frozenset[int]] = ContextVar("trio_mcp.inside_callbacks", default=frozenset())


class NotificationQueue:
    """Notifications in wire order, at most ``bound`` of them; beyond that the oldest is dropped and counted.

    ``handle`` gets one at a time. What it raises goes to ``failed``, and the next one is handled.
    """

    def __init__(
        self,
        bound: int,
        handle: Callable[[NotificationReceived], Awaitable[None]],
        failed: Callable[[Exception], None],
    ) -> None:
        self._bound = bound
        self._handle = handle
        self._failed = failed
        self._waiting: deque[NotificationReceived] = deque()
        self._arrived = trio.lowlevel.ParkingLot()
        self._progressed = trio.lowlevel.ParkingLot()
        self.received = 0
        """How many ever came."""
        self.handled = 0
        """How many of those are done with, the dropped ones included."""
        self.dropped = 0

    def put(self, event: NotificationReceived) -> None:
        """One has arrived."""
        self.received += 1
        if len(self._waiting) >= self._bound:
            self._waiting.popleft()
            self.dropped += 1
            self._done()
        self._waiting.append(event)
        self._arrived.unpark()

    def _done(self) -> None:
        self.handled += 1
        if self._progressed:
            self._progressed.unpark_all()

    async def run(self) -> None:
        """Hand them over until cancelled."""
        _inside.set(_inside.get() | {id(self)})
        while True:
            while not self._waiting:
                await self._arrived.park()
            event = self._waiting.popleft()
            try:
                await self._handle(event)
            except Exception as error:
                self._failed(error)
            self._done()

    async def caught_up(self, count: int) -> None:
        """Wait until ``count`` of them are done with. Inside a callback it returns at once, since there the
        wait would be for the caller itself."""
        while self.handled < count and id(self) not in _inside.get():
            await self._progressed.park()
