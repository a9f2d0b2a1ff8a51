"""Callers share what is bounded for a whole server.

A `Caller` is a party that has a share, and `leaves_enough` decides how much a caller gets. `SharedBytes` counts the
bytes that a server keeps for its callers against one bound.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary


def leaves_enough(held: int, free: int, more: int = 1) -> bool:
    """Return whether a caller that holds ``held`` may take ``more`` of ``free``.

    A caller gets no more than it leaves for others: half of all if no other caller wants any, a third if two want as
    much as possible. Some is thus left for the next caller, and a caller that was alone gives its excess back as its
    requests end.
    """
    return held + more <= free


class Caller:
    """A party that calls a server, over any number of connections, and what the party holds of the server's bounds.

    `Callers` has one for each party, for as long as a connection, a session, a request or a thread of the party refers
    to the `Caller`. ``key`` says who the party is; `None`: nobody knows, and each such `Caller` is another party. With
    ``alone`` no other party can call, and nothing is kept free for others.
    """

    __slots__ = ("__weakref__", "alone", "bytes", "connections", "key", "log_share", "requests", "streams")

    def __init__(self, key: Hashable = None, *, alone: bool = False) -> None:
        self.key = key
        self.alone = alone
        self.requests = 0
        """Requests that run, wait or are parked, streams apart."""
        self.streams = 0
        """Streams that are open."""
        self.bytes = 0
        """Bytes in memory of the requests and streams."""
        self.connections = 0
        """Connections of trusted proxies whose last request was one of the party."""
        self.log_share: Any = None
        """The share of the log, as `trio_mcp.diagnostics` keeps it; `None` before anything may be logged."""

    def __repr__(self) -> str:
        return f"<Caller {self.key!r}>"

    @property
    def address(self) -> str | None:
        """The network address that the party is known by; `None` where the party is known otherwise, or not at all."""
        match self.key:
            case ("address", str(address)):
                return address
            case _:
                return None

    def may_take(self, held: int, free: int, more: int = 1) -> bool:
        """Return whether the caller, which holds ``held``, may take ``more`` of ``free``: see `leaves_enough`."""
        return more <= free if self.alone else held + more <= free


class Callers:
    """The parties that call a server now, each of them once."""

    def __init__(self) -> None:
        self._known = WeakValueDictionary[Hashable, Caller]()

    def of_principal(self, principal: Hashable) -> Caller:
        """Return the party that authorization has found."""
        return self._of(("principal", principal))

    def at(self, address: str) -> Caller:
        """Return the party at a network address."""
        return self._of(("address", address))

    def _of(self, key: Hashable) -> Caller:
        caller = self._known.get(key)
        if caller is None:
            caller = self._known[key] = Caller(key)
        return caller


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
