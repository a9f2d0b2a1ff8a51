"""Expiring is a mapping in memory with entries that go when their time is over."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K", str, bytes)
V = TypeVar("V")

_FEW: Final = 64


class Expiring(Generic[K, V]):
    """Values by their keys, each of which is gone when its time is over. ``now``: the time in milliseconds."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._entries: dict[K, tuple[int, V]] = {}
        self._ends: list[tuple[int, K]] = []
        """Heap of the ends of the entries. One of an entry that is gone, or lasts longer by now, is passed over."""

    def __len__(self) -> int:
        self._drop_past()
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of ``key``; `None` where there is none, or none any more."""
        self._drop_past()
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def put(self, key: K, value: V, length: int) -> None:
        """Keep ``value`` for ``length`` milliseconds from now, in place of the value before."""
        self._drop_past()
        until = self._now() + length
        self._entries[key] = until, value
        heapq.heappush(self._ends, (until, key))
        if len(self._ends) > 2 * len(self._entries) + _FEW:
            self._ends = [(until, key) for key, (until, _) in self._entries.items()]
            heapq.heapify(self._ends)

    def pop(self, key: K) -> V | None:
        """Forget the value of ``key``, and return the value; `None` where there is none, or none any more."""
        self._drop_past()
        return self._drop(key) if key in self._entries else None

    def _drop(self, key: K) -> V:
        """Remove an entry that has expired or was popped, and return its value. Subclasses extend this."""
        return self._entries.pop(key)[1]

    def _drop_past(self) -> None:
        now = self._now()
        while self._ends and self._ends[0][0] <= now:
            until, key = heapq.heappop(self._ends)
            entry = self._entries.get(key)
            if entry is not None and entry[0] == until:
                self._drop(key)
