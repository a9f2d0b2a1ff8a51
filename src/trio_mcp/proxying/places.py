"""Places bound the connections to the server behind a proxy."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from ..concurrency.fair_share import leaves_enough
from ..jsonrpc.errors import TOO_BUSY, CodedError


class Idle(Protocol):
    """A connection to the server behind that nobody uses now."""

    async def make_room(self) -> None:
        """Close the connection, and wait until its place is free."""
        ...


class Places:
    """The places of at most ``most`` connections at the same time, of which no holder takes the share of others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[object] = Counter()
        self._idle: dict[Idle, None] = {}
        """The connections that may be closed for others, the one that is idle for the longest first."""

    async def take(self, holder: object) -> None:
        """Take a place for ``holder``, a party that calls the proxy. Where none is left, and ``holder`` has
        none, the connection that is idle for the longest is closed first. Raises `CodedError` (-31000)."""
        while not leaves_enough(self._held[holder], self._most - self._held.total()):
            if self._held[holder] or not self._idle:
                raise CodedError(TOO_BUSY, "Too busy: too many connections to the server behind; try again later")
            idle = next(iter(self._idle))
            del self._idle[idle]
            await idle.make_room()
        self._held[holder] += 1

    def give_back(self, holder: object) -> None:
        """Give a place of ``holder`` back."""
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]

    def mark_idle(self, idle: Idle) -> None:
        """Note that nobody uses a connection now, so that it may be closed for others."""
        self._idle[idle] = None

    def mark_used(self, idle: Idle) -> None:
        """Note that a connection is used again, or closed. Idempotent."""
        self._idle.pop(idle, None)
