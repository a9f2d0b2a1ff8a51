"""BoundedDict: a mapping that forgets its oldest entries."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """A dictionary of at most ``limit`` entries, in the order of their setting: an entry that is set anew becomes the
    newest, and the oldest entry makes room for one too many.

    The bound holds for entries that are set by their keys: ``update`` and ``setdefault`` of `dict` do not look at it.
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
