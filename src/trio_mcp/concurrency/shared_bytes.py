"""SharedBytes counts what a server keeps for its callers against one bound, shared by caller."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from .fair_share import Caller

__all__ = ["HeldBytes", "SharedBytes"]


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

    @property
    def is_too_much(self) -> bool:
        """True while the caller holds more than its share, here and elsewhere."""
        return self._shared.is_too_much(self._caller)
