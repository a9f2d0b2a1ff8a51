"""LineChannel: one message per line, over any byte stream (2026-07-28 stdio; its framing is recommended for
every reliable stream)."""

from __future__ import annotations

import socket
from typing import Protocol

import trio

from ..runtime.channel import ConnectionLost, MessageChannel, UnreadableFrame

__all__ = ["ByteStream", "LineChannel"]

_BOM = b"\xef\xbb\xbf"
_CHUNK = 65536
_HEAD = 65536


class ByteStream(Protocol):
    """What is asked of a stream; every `trio.abc.Stream` has it."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of ``data``."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Wait for some bytes; empty at the end."""
        ...

    async def aclose(self) -> None:
        """Close it."""


class LineChannel(MessageChannel):
    """Messages as lines of UTF-8, separated by ``\\n`` or ``\\r\\n``; blank lines and a leading BOM mean nothing.

    A line of more than ``max_message_bytes`` is skipped without being kept, and reported once.
    """

    def __init__(self, stream: ByteStream, max_message_bytes: int) -> None:
        self.network = _network_of(stream)
        self._stream = stream
        self._max = max_message_bytes
        self._buffer = bytearray()
        self._start = 0
        """Where the next line begins."""
        self._searched = 0
        """Up to where there is no newline."""
        self._skipping = False
        self._first = True
        self._ended = False

    async def receive(self) -> bytes | bytearray:
        """See `MessageChannel.receive`."""
        while True:
            line = self._next_line()
            if line is not None:
                return line
            if self._ended:
                raise trio.EndOfChannel
            await self._fill()

    def _next_line(self) -> bytes | bytearray | None:
        """The next line that says something, or `None` when more bytes are needed."""
        buffer = self._buffer
        while True:
            end = buffer.find(b"\n", self._searched)
            if end < 0:
                return self._unfinished_line()
            line = buffer[self._start : end]
            self._start = self._searched = end + 1
            if self._skipping:
                self._skipping = False
                continue
            if line.startswith(b"{") and len(line) <= self._max and not self._first:
                return line  # as nearly all of them
            if (message := self._message(line)) is not None:
                return message

    def _unfinished_line(self) -> bytes | bytearray | None:
        buffer = self._buffer
        if self._start:
            del buffer[: self._start]
            self._start = 0
        self._searched = len(buffer)
        bom = len(_BOM) if self._first and buffer.startswith(_BOM) else 0
        if len(buffer) - bom > self._max:
            head = buffer[bom:_HEAD]
            buffer.clear()
            self._first = False
            self._searched = 0
            if not self._skipping:
                self._skipping = True
                raise self._too_long(head)
        if self._ended and buffer and not self._skipping:
            line = bytes(buffer)
            buffer.clear()
            self._searched = 0
            return self._message(line)
        return None

    def _message(self, line: bytes | bytearray) -> bytes | bytearray | None:
        if self._first:
            self._first = False
            if line.startswith(_BOM):
                line = line[len(_BOM) :]
        if len(line) > self._max:
            raise self._too_long(line[:_HEAD])
        return line if line and not line.isspace() else None

    def _too_long(self, head: bytes | bytearray) -> UnreadableFrame:
        return UnreadableFrame(f"a message has at most {self._max} bytes", head)

    async def _fill(self) -> None:
        try:
            data = await self._stream.receive_some(_CHUNK)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost(f"the connection broke: {error.__cause__ or error}") from error
        if data:
            self._buffer += data
        else:
            self._ended = True

    async def send(self, messages: bytes | bytearray) -> None:
        """See `MessageChannel.send`."""
        try:
            await self._stream.send_all(messages)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost("the peer reads no more") from error

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


def _network_of(stream: ByteStream) -> str:
    if not isinstance(stream, trio.SocketStream):
        return "pipe"
    return "unix" if stream.socket.family == socket.AF_UNIX else "tcp"
