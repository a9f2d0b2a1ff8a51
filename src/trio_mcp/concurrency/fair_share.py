"""Caller: a party that shares what is bounded for a whole server. leaves_enough decides how much a caller gets."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakValueDictionary


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
