"""SharedBytes counts what a server keeps for its callers against one bound, shared by caller."""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from .fair_share import Caller

UNCOUNTED: Final = 16 * 1024
"""Bytes of a connection that are not worth counting."""


class SharedBytes:
    """Bytes that a server keeps, ``most`` in all, of which each caller gets its share."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = 0
        """Bytes that all callers together hold."""
        self._of_callers = WeakKeyDictionary[Caller, int]()

    def held_for(self, caller: Caller) -> HeldBytes:
        """Return a count of bytes that are kept for ``caller``, none so far."""
        return HeldBytes(self, caller)

    def add(self, caller: Caller, count: int) -> None:
        """Note that ``caller`` holds ``count`` bytes more, or fewer where that is negative."""
        self.size += count
        held = self._of_callers.get(caller, 0) + count
        if held:
            self._of_callers[caller] = held
        else:
            self._of_callers.pop(caller, None)

    def is_too_much(self, caller: Caller) -> bool:
        """Return whether ``caller`` holds more than its share: more than it leaves for others."""
        return not caller.may_take(self._of_callers.get(caller, 0), self._most - self.size, 0)


class HeldBytes:
    """The bytes of ``shared`` that one thing keeps for ``caller``, a log for example."""

    __slots__ = ("_caller", "_shared", "size")

    def __init__(self, shared: SharedBytes, caller: Caller) -> None:
        self._shared = shared
        self._caller = caller
        self.size = 0

    def add(self, count: int) -> None:
        """Note ``count`` bytes more, or fewer where that is negative."""
        self.size += count
        self._shared.add(self._caller, count)

    def release(self) -> None:
        """Give all bytes back. Idempotent."""
        self.add(-self.size)

    def hold(self, size: int) -> bool:
        """Note that ``size`` bytes are kept now, counted in steps of `UNCOUNTED`. Return whether the caller may go on:
        false for more than the share of the caller."""
        more = (size if size > UNCOUNTED else 0) - self.size
        if 0 <= more <= UNCOUNTED:
            return True
        self.add(more)
        return more < 0 or not self.is_too_much

    def move_to(self, caller: Caller) -> None:
        """Count the bytes for ``caller`` from now on."""
        size = self.size
        self.release()
        self._caller = caller
        self.add(size)

    @property
    def is_too_much(self) -> bool:
        """True while the caller holds more than its share, here and elsewhere."""
        return self._shared.is_too_much(self._caller)
