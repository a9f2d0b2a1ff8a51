"""Watching: the latest news of each thing, for any number of readers who may be slow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Generic, TypeVar
from weakref import WeakSet

import trio

__all__ = ["Feed", "Watch"]

T = TypeVar("T")


class Watch(AsyncIterator[T], Generic[T]):
    """What became of each thing since it was last told here: the latest only, in the order in which it came.

    So a slow reader misses what was overtaken, never how things stand, and holds no more than one value for each
    thing. It begins with how things stand now, and ends with the group. No async generator: it may be
    dropped at any time, and a cancelled step loses nothing. One task at a time.
    """

    def __init__(self, standing: dict[str, T]) -> None:
        self._pending = {key: (value, False) for key, value in standing.items()}
        self._known: set[str] = set()
        """What the reader has heard of, and not of its end."""
        self._over = False
        self._arrived = trio.lowlevel.ParkingLot()

    def put(self, key: str, value: T, *, last: bool) -> None:
        """Something became of ``key``; ``last``: that was its end."""
        self._pending.pop(key, None)
        if last and key not in self._known:
            return  # who never heard of it need not hear of its end
        self._pending[key] = value, last
        self._arrived.unpark()

    def end(self) -> None:
        """No more will come."""
        self._over = True
        self._arrived.unpark_all()

    async def __anext__(self) -> T:
        await trio.lowlevel.checkpoint()
        while not self._pending:
            if self._over:
                raise StopAsyncIteration
            await self._arrived.park()
        key = next(iter(self._pending))
        value, last = self._pending.pop(key)
        (self._known.discard if last else self._known.add)(key)
        return value


class Feed(Generic[T]):
    """Tells its watches what becomes of things, by name."""

    def __init__(self) -> None:
        self.standing: dict[str, T] = {}
        """How each thing stands."""
        self._watches: WeakSet[Watch[T]] = WeakSet()
        self._over = False

    def publish(self, key: str, value: T, *, last: bool = False) -> None:
        """This became of it; ``last``: and that was its end."""
        if last:
            self.standing.pop(key, None)
        else:
            self.standing[key] = value
        for watch in tuple(self._watches):
            watch.put(key, value, last=last)

    def watch(self) -> Watch[T]:
        """One more reader."""
        watch = Watch(self.standing)
        if self._over:
            watch.end()
        else:
            self._watches.add(watch)
        return watch

    def close(self) -> None:
        """All watches end when they have told what they have."""
        self._over = True
        for watch in tuple(self._watches):
            watch.end()
