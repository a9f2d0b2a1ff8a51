"""Inbox: the messages that all exchanges have brought, until the reader comes for more."""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from ...concurrency.sleeper import Sleeper
from ...jsonrpc.messages import RequestId
from ...runtime.channel import ReplyLost

_MOST_OWED: Final = 1000


class Inbox:
    """A queue of messages and losses, in the order in which they came. An exchange reads on when there is `room`, so
    beyond ``high_water`` bytes, and beyond a thousand answers that the server does not take, each exchange adds no more
    than was read at once."""

    def __init__(self, high_water: int) -> None:
        self._high_water = high_water
        self._waiting: deque[tuple[bytes | ReplyLost, RequestId | None]] = deque()
        self._size = 0
        self.came_with: RequestId | None = None
        """Id of the request in whose answer the last message of `take` came: see `MessageChannel.came_with`."""
        self._owed = 0
        """Answers of ours that are on their way to the server."""
        self._reader = Sleeper()
        self._producers = trio.lowlevel.ParkingLot()

    def put(self, message: bytes | ReplyLost, came_with: RequestId | None = None) -> None:
        """Append a message, which came in the answer to ``came_with`` if any, or the loss of a reply."""
        self._waiting.append((message, came_with))
        if isinstance(message, bytes):
            self._size += len(message)
        self._reader.wake()

    @property
    def _is_full(self) -> bool:
        return self._size >= self._high_water or self._owed >= _MOST_OWED

    async def room(self) -> None:
        """Wait until fewer bytes wait than the high-water mark, and few answers. No checkpoint when there is room."""
        while self._is_full:
            await self._producers.park()

    def owed(self) -> None:
        """Note that an answer of ours is to be delivered."""
        self._owed += 1

    def paid(self) -> None:
        """Note that an answer was delivered, or never will be."""
        self._owed -= 1
        self._make_room()

    def _make_room(self) -> None:
        if self._producers and not self._is_full:
            self._producers.unpark_all()

    async def take(self) -> bytes:
        """Wait for the next message, and return the message; raise `ReplyLost` for a loss. No checkpoint when one
        waits. A cancel loses nothing."""
        while not self._waiting:
            await self._reader.sleep()
        message, self.came_with = self._waiting.popleft()
        if isinstance(message, ReplyLost):
            try:
                raise message
            finally:
                del message  # with its traceback it would keep the frame that keeps it
        self._size -= len(message)
        self._make_room()
        return message
