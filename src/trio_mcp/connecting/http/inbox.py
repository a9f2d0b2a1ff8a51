"""Inbox: the messages that all exchanges have brought, until the reader takes them."""

from __future__ import annotations

from collections import deque

import trio

from ...concurrency.sleeper import Sleeper
from ...runtime.channel import ReplyLost

__all__ = ["Inbox"]


class Inbox:
    """A queue of messages and losses, in the order in which they came. An exchange reads on when there is `room`, so
    beyond ``high_water`` bytes each exchange adds no more than it has read at once."""

    def __init__(self, high_water: int) -> None:
        self._high_water = high_water
        self._waiting: deque[bytes | ReplyLost] = deque()
        self._size = 0
        self._reader = Sleeper()
        self._producers = trio.lowlevel.ParkingLot()

    def put(self, message: bytes | ReplyLost) -> None:
        """Append a message, or the loss of a reply."""
        self._waiting.append(message)
        if isinstance(message, bytes):
            self._size += len(message)
        self._reader.wake()

    async def room(self) -> None:
        """Wait until fewer bytes wait than the high-water mark. No checkpoint when there is room."""
        while self._size >= self._high_water:
            await self._producers.park()

    async def take(self) -> bytes:
        """Wait for the next message and return it; raise `ReplyLost` for a loss. No checkpoint when one waits. A cancel
        loses nothing."""
        while not self._waiting:
            await self._reader.sleep()
        message = self._waiting.popleft()
        if isinstance(message, ReplyLost):
            try:
                raise message
            finally:
                del message  # with its traceback it would keep the frame that keeps it
        self._size -= len(message)
        if self._producers and self._size < self._high_water:
            self._producers.unpark_all()
        return message
