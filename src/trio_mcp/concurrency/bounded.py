"""Containers with a maximum size. `BoundedDict` drops its oldest entries; `Backlog` holds items for a slower
consumer."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """A dictionary of at most ``limit`` entries, in the order in which they were set.

    Setting an entry again makes this entry the newest. If there are too many entries, the oldest is dropped.

    The limit applies to ``d[key] = value``, but not to ``update`` and ``setdefault``, which are inherited from `dict`.
    """

    __slots__ = ("_limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._limit:
            del self[next(iter(self))]


class Backlog(Generic[T]):
    """A queue with at most ``max_items`` items and ``max_bytes`` bytes.

    If there is no room for a new item, the oldest items are dropped. The newest item is always kept, however large.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: deque[tuple[T, int]] | None = None
        """The queued items. `None` until the first `put`: an empty deque takes 760 bytes, and most backlogs of a server
        stay empty."""
        self._bytes = 0

    def __len__(self) -> int:
        return 0 if self._items is None else len(self._items)

    def put(self, item: T, size: int) -> int:
        """Add an item that takes ``size`` bytes when it is sent.

        Return how many older items were dropped to make room.
        """
        dropped, items = 0, self._items
        if items is None:
            items = self._items = deque()
        while items and (len(items) >= self._max_items or self._bytes + size > self._max_bytes):
            self.pop()
            dropped += 1
        items.append((item, size))
        self._bytes += size
        return dropped

    def pop(self) -> T:
        """Remove the oldest item and return it. Raises `IndexError` if the backlog is empty."""
        if self._items is None:
            raise IndexError("the backlog is empty")
        item, size = self._items.popleft()
        self._bytes -= size
        return item
