"""ReadingOrder hands on requests that were read together in the order in which they were read."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from weakref import WeakKeyDictionary

import trio

from ..state.requests import InboundRequest

__all__ = ["ReadingOrder"]


class _Place:
    def __init__(self, number: int) -> None:
        self.number = number
        self.is_next = trio.Event()
        self.left = False

    def __lt__(self, other: _Place) -> bool:
        return self.number < other.number


class ReadingOrder:
    """The order of a connection's requests. Each runs in a task of its own, and tasks start in any order."""

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[InboundRequest, int] = WeakKeyDictionary()
        self._count = count()
        self._places: list[_Place] = []

    def note(self, request: InboundRequest) -> None:
        """Note that ``request`` was read now."""
        self._numbers[request] = next(self._count)

    async def take(self, request: InboundRequest) -> None:
        """Wait for the requests that were read before ``request`` and whose tasks have come here, or come in the same
        moment. The next request waits until the caller of this one waits for something."""
        place = _Place(self._numbers.pop(request))
        heappush(self._places, place)
        try:
            await trio.lowlevel.checkpoint()
            if self._places[0] is not place:
                await place.is_next.wait()
        finally:
            place.left = True
            while self._places and self._places[0].left:
                heappop(self._places)
            if self._places:
                self._places[0].is_next.set()
