"""Wires in memory: bytes take time, come in pieces, and are lost at any byte when a wire is cut.

Each wire is listened to by an `Audit`, which knows what either end may say.
"""

from __future__ import annotations

from collections import deque
from random import Random

import trio
from tests.simulation.extensions.audit import Audit

ROOM = 4096
"""Bytes that a direction holds before its writer waits."""
DELAYS = (0.0, 0.0, 0.01, 0.05)
"""Seconds that a wire takes, one of these for the life of the wire."""


class _Direction:
    """One direction of a wire, from ``writer`` on."""

    def __init__(self, audit: Audit, writer: str, chance: Random, delay: float) -> None:
        self._audit = audit
        self._writer = writer
        self._chance = chance
        self._delay = delay
        self._pieces = deque[tuple[float, bytes]]()
        """Pieces on their way, each with the time of its arrival."""
        self.size = 0
        self.is_over = False
        """True once nothing more can be written."""
        self.breaks = False
        """True where the reader learns of the end by an error."""
        self.changed = trio.lowlevel.ParkingLot()

    def note(self, data: bytes) -> None:
        """Note that ``data`` is written, from now on."""
        self._audit.written(self._writer, data)

    def put(self, data: bytes) -> None:
        self._pieces.append((trio.current_time() + self._delay, data))
        self.size += len(data)
        self.changed.unpark_all()

    def end(self, *, breaks: bool = False) -> None:
        self.is_over = True
        self.breaks = self.breaks or breaks
        self.changed.unpark_all()

    def lose(self) -> None:
        """Lose the end of what is on its way, from any byte on."""
        whole = b"".join(piece for _, piece in self._pieces)
        kept = whole[: self._chance.randint(0, len(whole))]
        self._pieces.clear()
        self.size = len(kept)
        if kept:
            self._pieces.append((trio.current_time(), kept))

    async def take(self, most: int) -> bytes:
        """Wait for the next bytes; empty at the end."""
        while True:
            while not self._pieces:
                if self.breaks:
                    raise trio.BrokenResourceError("the wire was cut")
                if self.is_over:
                    return b""
                await self.changed.park()
            if (due := self._pieces[0][0]) <= trio.current_time():
                break
            await trio.sleep_until(due)
        if not self._pieces:  # lost meanwhile
            return await self.take(most)
        _, piece = self._pieces.popleft()
        length = len(piece) if self._chance.random() < 0.9 else self._chance.randint(1, len(piece))
        if length < len(piece):
            self._pieces.appendleft((due, piece[length:]))
        self.size -= length
        self.changed.unpark_all()
        self._audit.delivered(self._writer, piece[:length])
        return piece[:length]


class End:
    """An end of a wire: a stream of bytes."""

    def __init__(self, outgoing: _Direction, incoming: _Direction, chance: Random) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._chance = chance
        self._is_closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all, unless the wire is cut."""
        way, rest = self._outgoing, bytes(data)
        way.note(rest)
        await trio.lowlevel.checkpoint()
        while rest:
            self._check()
            if (room := ROOM - way.size) > 0:
                way.put(rest[:room])
                rest = rest[room:]
            else:
                await way.changed.park()

    def send_nowait(self, data: bytes | bytearray) -> int:
        """Write a part of a line, all of it or none."""
        way = self._outgoing
        room = ROOM - way.size
        if self._is_closed or way.is_over or room <= 0:
            return 0
        length = min(room, len(data) if self._chance.random() < 0.9 else self._chance.randint(0, len(data)))
        if length:
            way.note(bytes(data[:length]))
            way.put(bytes(data[:length]))
        return length

    def _check(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError
        if self._outgoing.is_over:
            raise trio.BrokenResourceError("the wire was cut")

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for some bytes."""
        await trio.lowlevel.checkpoint()
        if self._is_closed:
            raise trio.ClosedResourceError
        return await self._incoming.take(max_bytes or ROOM)

    async def aclose(self) -> None:
        """Close both directions; what is on its way to the other end comes there."""
        self._is_closed = True
        self._outgoing.end()
        self._incoming.end(breaks=True)
        await trio.lowlevel.checkpoint()


class Wire:
    """A wire between a client and a server, called ``name``."""

    def __init__(self, name: str, chance: Random, faults: list[str]) -> None:
        self.name = name
        self.audit = Audit(name, faults)
        self.is_cut = False
        self._chance = chance
        delay = chance.choice(DELAYS)
        self._there = _Direction(self.audit, "client", chance, delay)
        self._back = _Direction(self.audit, "server", chance, delay)
        self.client = End(self._there, self._back, chance)
        self.server = End(self._back, self._there, chance)

    def cut(self) -> None:
        """Cut the wire: either direction loses what is on its way, from any byte on, and its reader learns of that by
        an error or by an end."""
        self.is_cut = self.audit.is_over = True
        for way in (self._there, self._back):
            way.lose()
            way.end(breaks=self._chance.random() < 0.5)
