"""Feed and Watch: the latest news under each key, for any number of readers, which may be slow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Generic, TypeVar
from weakref import WeakSet

import trio

T = TypeVar("T")


class Watch(AsyncIterator[T], Generic[T]):
    """Iterate over the latest value of each key that changed since its last reading here, in order of change.

    A slow reader misses replaced values, never the latest one, and holds no more than one value for each key. The
    iteration begins with all present values, and ends with the group. The object is not an async generator: it may be
    dropped at any time, and a cancelled step loses nothing. One task at a time.
    """

    def __init__(self, standing: dict[str, T]) -> None:
        self._pending = {key: (value, False) for key, value in standing.items()}
        self._known: set[str] = set()
        """Keys whose value has been read, and whose last value has not."""
        self._over = False
        self._arrived = trio.lowlevel.ParkingLot()

    def put(self, key: str, value: T, *, last: bool) -> None:
        """Store ``value`` for the reader; ``last`` ends its key."""
        self._pending.pop(key, None)
        if last and key not in self._known:
            return  # a reader that never got the key need not hear of its end
        self._pending[key] = value, last
        self._arrived.unpark()

    def end(self) -> None:
        """End the iteration after the values that are stored."""
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
    """Publish values by key to all watches."""

    def __init__(self) -> None:
        self.standing: dict[str, T] = {}
        """The present value of each key."""
        self._watches: WeakSet[Watch[T]] = WeakSet()
        self._over = False

    def publish(self, key: str, value: T, *, last: bool = False) -> None:
        """Publish ``value``; ``last`` ends its key."""
        if last:
            self.standing.pop(key, None)
        else:
            self.standing[key] = value
        for watch in tuple(self._watches):
            watch.put(key, value, last=last)

    def watch(self) -> Watch[T]:
        """Return a watch for another reader."""
        watch = Watch(self.standing)
        if self._over:
            watch.end()
        else:
            self._watches.add(watch)
        return watch

    def close(self) -> None:
        """End all watches, each after the values it still holds."""
        self._over = True
        for watch in tuple(self._watches):
            watch.end()
