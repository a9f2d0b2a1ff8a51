"""LineTransport: one message per line over any byte stream (recommended for reliable streams by 2026-07-28 stdio).
`memory_transport_pair` connects two transports within a process, without a stream."""

from __future__ import annotations

import logging
import socket
from collections import deque
from typing import Final, Protocol, cast

import trio

from ..concurrency.fair_share import HeldBytes
from ..runtime.transport import ConnectionLost, FramedTransport, Transport, UnreadableFrame
from .streams import AT_ONCE, drop_tracebacks, nowait_writer

logger = logging.getLogger("trio_mcp")

_BOM = b"\xef\xbb\xbf"
_CHUNK = 65536
_HEAD = 65536
_TAIL = 65536
_NO_ROOM: Final = "incomplete messages take too many bytes; try again later"


class ByteStream(Protocol):
    """The methods that `LineTransport` needs in a byte stream. Every `trio.abc.Stream` has them."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of ``data``."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Wait for some bytes, and return them. Empty bytes mean the end of the stream."""
        ...

    async def aclose(self) -> None:
        """Close the stream."""


class LineTransport(FramedTransport):
    r"""A transport that sends and receives each message as a line of UTF-8.

    Lines end in ``\n`` or ``\r\n``. Blank lines and a leading BOM are skipped.

    A line of more than ``max_message_bytes`` is dropped while it arrives, and reported once: a JSON object at the end
    of the line, where its id may be, and any other line at once. A server counts the bytes of an incomplete line in
    ``unread``, and ends the connection if they exceed the caller's limit.
    """

    def __init__(self, stream: ByteStream, max_message_bytes: int, unread: HeldBytes | None = None) -> None:
        self.network = "pipe"
        if isinstance(stream, trio.SocketStream):
            self.network = "unix" if stream.socket.family == socket.AF_UNIX else "tcp"
        self._stream = stream
        self._max = max_message_bytes
        self._unread = unread
        self.buffered = []
        self._lines: list[bytes | bytearray] = []
        """Complete lines that `receive` hasn't examined yet, in reverse order: the next line is the last. Meanwhile
        `buffered` is empty."""
        self._unfinished = bytearray()
        """The beginning of an incomplete line, which follows all complete lines."""
        self._head: bytearray | None = None
        """The first bytes of a line that is too long. Empty after that line was reported. Until the line ends,
        ``_unfinished`` holds only its last bytes."""
        self._first = True
        self._ended = False
        self._write_nowait = nowait_writer(stream)
        self._at_once = AT_ONCE
        self.received = 0
        """Number of bytes received so far."""

    async def receive(self) -> bytes | bytearray:
        """Receive the next line, and return the message in it. See `Transport.receive`."""
        while True:
            while self._lines:
                line = self._lines.pop()
                if line.startswith(b"{") and len(line) <= self._max and not self._first:
                    return line  # nearly all lines are returned here, without further checks
                if (message := self._message(line)) is not None:
                    return message
            if self.buffered:
                return self.buffered.pop()
            if self._unfinished:
                self._bound_unfinished()
            if self._ended:
                raise trio.EndOfChannel
            await self._fill()

    async def until_first(self) -> None:
        """Wait until a message or an error has arrived, so that the first call of `receive` ends without waiting.

        Call this before the first `receive`, in the same task.
        """
        while not (self._ended or any(line.removeprefix(_BOM).strip() for line in self._lines)):
            if len(self._unfinished) > self._max:
                return
            self._lines.clear()  # all lines were blank
            await self._fill()

    def _message(self, line: bytes | bytearray) -> bytes | bytearray | None:
        """Return the message in ``line``. Return `None` if the line is blank."""
        if self._first:
            self._first = False
            if line.startswith(_BOM):
                line = line[len(_BOM) :]
        if len(line) > self._max:
            raise self._too_long(line[:_HEAD], line[-_TAIL:])
        return line if line and not line.isspace() else None

    def _bound_unfinished(self) -> None:
        bom = len(_BOM) if self._first and self._unfinished.startswith(_BOM) else 0
        if self._head is None and len(self._unfinished) - bom > self._max:
            head = self._unfinished[bom : bom + _HEAD]
            self._first = False
            if not head.lstrip().startswith(b"{"):
                self._head = bytearray()
                raise self._too_long(head, b"")
            self._head = head
        if self._head is not None:
            del self._unfinished[:-_TAIL]
            self._count_unfinished()

    def _count_unfinished(self) -> None:
        """Set the counter of the connection's unread bytes to the size of the incomplete line.

        Raises `ConnectionLost` if the caller exceeds the limit of unread bytes.
        """
        if self._unread is None:
            return
        size = len(self._unfinished) + len(self._head or b"")
        if not self._unread.hold(size):
            logger.warning("a connection ends: %s", _NO_ROOM)
            raise ConnectionLost(_NO_ROOM)

    def _too_long(self, head: bytes | bytearray, tail: bytes | bytearray) -> UnreadableFrame:
        return UnreadableFrame(f"the message is longer than {self._max} bytes", head, tail)

    async def _fill(self) -> None:
        """Wait for more bytes, and split them into lines. Call this when all complete lines were returned."""
        try:
            data = await self._stream.receive_some(_CHUNK)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            drop_tracebacks(error)
            raise ConnectionLost(f"the connection broke: {error.__cause__ or error}") from error
        self._ended = not data
        self.received += len(data)
        if self._unfinished and data and b"\n" not in data:  # a fast path for parts of a long line
            self._unfinished += data
            self._count_unfinished()
            return
        whole = cast("list[bytes | bytearray]", (data or b"\n").split(b"\n"))  # the last line may have no newline
        last = whole.pop()
        if not whole:
            self._unfinished += last
            self._count_unfinished()
            return
        if self._unfinished:
            self._unfinished += whole[0]
            whole[0] = self._unfinished
        # If messages arrived together, send their replies together: this saves system calls on both sides.
        self._at_once = AT_ONCE if len(whole) == 1 else 0
        whole.reverse()
        if len(whole) > 1 and self._are_plain(whole, len(data)):
            self.buffered.extend(whole)
        else:
            self._lines = whole
        if self._unfinished or last:
            self._unfinished = bytearray(last)
            # `_head` is the beginning of a line that is too long; the last bytes of this line are in `_unfinished`.
            head, self._head = self._head, None
            self._count_unfinished()
            if head is not None:
                end = whole.pop()
                if head:
                    raise self._too_long(head, end[-_TAIL:])

    def _are_plain(self, lines: list[bytes | bytearray], longest: int) -> bool:
        """Return whether ``lines`` contain only messages that `receive` can return without changing or checking them.

        ``lines`` are in reverse order. Only the line that is returned first can be longer than ``longest``.
        """
        if self._first or self._head is not None or max(longest, len(lines[-1])) > self._max:
            return False
        return min(lines) >= b"{" and max(lines) < b"|"  # true if all lines begin with a brace

    async def send(self, messages: bytes | bytearray) -> None:
        """Send the messages as lines: see `Transport.send`."""
        try:
            await self._stream.send_all(messages)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            drop_tracebacks(error)
            raise ConnectionLost("the peer has stopped reading") from error
        self._at_once = AT_ONCE

    def send_nowait(self, message: bytes) -> int:
        """Send as much of the message as possible without waiting. See `FramedTransport.send_nowait`.

        If several lines were received together, nothing is sent this way, because the writer sends the replies to all
        these lines in one system call.
        """
        if not self._at_once:
            return 0
        self._at_once -= 1
        return self._write_nowait(message)

    async def aclose(self) -> None:
        """Close the underlying stream."""
        await self._stream.aclose()


class _Pipe:
    """One direction of a connection between two transports in memory.

    If ``capacity`` bytes are buffered, senders wait, as with an operating system's pipe. A larger batch is accepted if
    nothing is buffered.
    """

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
    """One end of a pair of connected transports in memory. Closing either end closes both directions."""

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
            raise ConnectionLost("the other side has closed the connection")
        pipe.put(messages)

    def send_nowait(self, message: bytes) -> int:
        """Send either the whole message or nothing, without waiting: see `FramedTransport.send_nowait`."""
        pipe = self._outgoing
        if pipe.closed or pipe.is_full_for(message):
            return 0
        pipe.put(message)
        return len(message)

    async def aclose(self) -> None:
        """Close both directions of the connection. The transport at the other end can still receive the messages that
        were sent before."""
        for pipe in (self._incoming, self._outgoing):
            pipe.closed = True
            pipe.changed.unpark_all()
        await trio.lowlevel.checkpoint()


def memory_transport_pair(capacity: int = 65536) -> tuple[Transport, Transport]:
    """Return two transports that are connected in memory. Each direction buffers up to ``capacity`` bytes."""
    return memory_transports(capacity)


def memory_transports(capacity: int = 65536) -> tuple[MemoryTransport, MemoryTransport]:
    """Like `memory_transport_pair`, but return `MemoryTransport` objects. Only this package calls this function."""
    there, back = _Pipe(capacity), _Pipe(capacity)
    return MemoryTransport(there, back), MemoryTransport(back, there)
