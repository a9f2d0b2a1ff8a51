"""Outgoing: the bytes on their way to a client, written at once or by a task that may wait."""

from __future__ import annotations

from typing import Final

import trio

from ..nowait import nowait_writer, unacknowledged
from .answers import LAST_CHUNK, chunk
from .application import Source

_WRITE: Final = 64 * 1024


class Outgoing:
    """The bytes that go to ``stream``. Once `put` has left a rest, or a source was given to `put_stream`, all that
    follows is for `write_all`, until that returns."""

    __slots__ = ("_chunked", "_pending", "_sending", "_since", "_source", "_stream", "_waiting", "_write_nowait")

    def __init__(self, stream: trio.abc.SendStream) -> None:
        self._stream = stream
        self._write_nowait = nowait_writer(stream)
        self._waiting = b""
        """The bytes that are not written."""
        self._source: Source | None = None
        """The source of what follows these bytes."""
        self._chunked = False
        self._sending = False
        """True while bytes wait for the client to take some."""
        self._since: float | None = None
        """The time of the first `stalled` since the client last took any."""
        self._pending: _Pending | None = None
        """The bytes of a stream that are on their way. An answer has an end of its own, which the client confirms by
        its next request, or by going."""

    @property
    def waits(self) -> bool:
        """True while there is anything for `write_all`."""
        return bool(self._waiting) or self._sending or self._source is not None

    @property
    def streams(self) -> bool:
        """True while a source is not at its end."""
        return self._source is not None

    @trio.lowlevel.enable_ki_protection  # an interrupt must not come between the front of an answer and its rest
    def put(self, data: bytes) -> bool:
        """Write ``data`` as far as the system takes it at once. Return whether that is all."""
        if self.waits:
            self._waiting += data
            return False
        count = self._write_nowait(data)
        if count == len(data):
            return True
        self._waiting = data[count:]
        return False

    def put_stream(self, head: bytes, source: Source, *, chunked: bool) -> None:
        """Write ``head``; what ``source`` gives is left to `write_all`."""
        self.put(head)
        self._source = source
        self._chunked = chunked
        self._pending = _Pending(self._stream)

    def stalled(self, now: float) -> float:
        """Return for how many seconds, at ``now``, the client has taken none of the bytes that wait, as far as calls of
        this method can tell. Of a stream, bytes that the system has taken wait until the client's system acknowledges
        them: comments are too short to fill the buffers of a system that talks to nobody."""
        if not self._sending:
            return 0 if self._pending is None else self._pending.stalled(now)
        if self._since is None:
            self._since = now
        return now - self._since

    async def write_all(self) -> None:
        """Write what waits, and the source to its end. One task may do so at a time."""
        await self._write_waiting()
        source = self._source
        if source is not None:
            while data := await source.take():
                await self._send(chunk(data) if self._chunked else data)
            if self._chunked:
                await self._send(LAST_CHUNK)
            self._source = self._pending = None
        await self._write_waiting()

    async def _write_waiting(self) -> None:
        while self._waiting:
            data, self._waiting = self._waiting, b""
            await self._send(data)

    async def _send(self, data: bytes | bytearray) -> None:
        self._sending = True
        if self._pending is not None:
            self._pending.added += len(data)
        try:
            for start in range(0, len(data), _WRITE):
                self._since = None
                await self._stream.send_all(memoryview(data)[start : start + _WRITE])
        finally:
            self._sending = False


class _Pending:
    """The bytes of a stream that the system has taken, and the client's system has not acknowledged."""

    __slots__ = ("_count", "_since", "_stream", "added")

    def __init__(self, stream: trio.abc.SendStream) -> None:
        self._stream = stream
        self._count = 0
        self._since: float | None = None
        """The time of the first `stalled` since any were acknowledged."""
        self.added = 0
        """Bytes that were written since the last `stalled`."""

    def stalled(self, now: float) -> float:
        """Return for how many seconds, at ``now``, none were acknowledged, as far as calls of this method can tell."""
        most = self._count + self.added
        if not most:
            return 0
        self.added, self._count = 0, unacknowledged(self._stream)
        if not self._count:
            self._since = None
            return 0
        if self._since is None or self._count < most:
            self._since = now
        return now - self._since
