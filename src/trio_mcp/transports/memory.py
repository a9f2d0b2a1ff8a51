"""A pair of transports in memory, for tests and for servers inside the client's own process."""

from __future__ import annotations

from collections import deque

import trio

from ..runtime.transport import ConnectionLost, FramedTransport


class _Pipe:
    """A direction of a pair. A sender waits when ``capacity`` bytes are stored, as with a pipe of the system; a larger
    batch passes through an empty direction."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.lines: deque[bytes] = deque()
        self.size = 0
        self.closed = False
        self.changed = trio.lowlevel.ParkingLot()

    def is_full_for(self, messages: bytes | bytearray) -> bool:
        return self.size > 0 and self.size + len(messages) > self.capacity

    def put(self, messages: bytes | bytearray) -> None:
        for line in bytes(messages).split(b"\n"):
            if line:
                self.lines.append(line)
                self.size += len(line)
        self.changed.unpark_all()


class MemoryTransport(FramedTransport):
    """An end of a pair. Closing either end ends both directions."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self) -> bytes:
        """Receive the next message: see `Transport.receive`."""
        pipe = self._incoming
        while not pipe.lines:
            if pipe.closed:
                raise trio.EndOfChannel
            await pipe.changed.park()
        line = pipe.lines.popleft()
        pipe.size -= len(line)
        pipe.changed.unpark_all()
        return line

    async def send(self, messages: bytes | bytearray) -> None:
        """Send the messages: see `Transport.send`."""
        await trio.lowlevel.checkpoint()
        pipe = self._outgoing
        while pipe.is_full_for(messages) and not pipe.closed:
            await pipe.changed.park()
        if pipe.closed:
            raise ConnectionLost("the other end was closed")
        pipe.put(messages)

    def send_nowait(self, message: bytes) -> int:
        """Send the whole message or nothing: see `FramedTransport.send_nowait`."""
        pipe = self._outgoing
        if pipe.closed or pipe.is_full_for(message):
            return 0
        pipe.put(message)
        return len(message)

    async def aclose(self) -> None:
        """Close both directions; messages sent before can still be received."""
        for pipe in (self._incoming, self._outgoing):
            pipe.closed = True
            pipe.changed.unpark_all()
        await trio.lowlevel.checkpoint()


def memory_transport_pair(capacity: int = 65536) -> tuple[MemoryTransport, MemoryTransport]:
    """Return two transports connected to each other, with room for ``capacity`` bytes each way."""
    there, back = _Pipe(capacity), _Pipe(capacity)
    return MemoryTransport(there, back), MemoryTransport(back, there)
