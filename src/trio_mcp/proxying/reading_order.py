"""ReadingOrder hands on requests that were read together in the order of reading."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from weakref import WeakKeyDictionary

import trio

from ..state.requests import InboundRequest


class _Turn:
    def __init__(self, number: int) -> None:
        self.number = number
        self.is_next = trio.Event()
        self.left = False

    def __lt__(self, other: _Turn) -> bool:
        return self.number < other.number


class ReadingOrder:
    """The order of a connection's requests. Each request runs in a task of its own, and tasks start in any order."""

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[InboundRequest, int] = WeakKeyDictionary()
        self._count = count()
        self._turns: list[_Turn] = []

    def note(self, request: InboundRequest) -> None:
        """Note that ``request`` was read now."""
        self._numbers[request] = next(self._count)

    async def take(self, request: InboundRequest) -> None:
        """Wait for the requests that were read before ``request`` and have reached this method, or reach this method in
        the same moment. The next request waits until the caller of this call waits for something."""
        turn = _Turn(self._numbers.pop(request))
        heappush(self._turns, turn)
        try:
            await trio.lowlevel.checkpoint()
            if self._turns[0] is not turn:
                await turn.is_next.wait()
        finally:
            turn.left = True
            while self._turns and self._turns[0].left:
                heappop(self._turns)
            if self._turns:
                self._turns[0].is_next.set()
