"""Recording is the recording of one connection, with its file. The thread of the `Recorder` carries out each
`WriteJob`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Final, Literal, TypeAlias

import attrs
import msgspec
import trio

from ..classes import define
from ..jsonrpc.messages import RequestId
from .entries import EventName, Header, RecordedEntry, Reference
from .masking import Masking

_ENTRY: Final = 200
"""Bytes that a message or an event takes besides its text."""
_encoder: Final = msgspec.json.Encoder()


@define(eq=False)
class WriteJob:
    """Something for the thread: a message with its direction, an event, or, with ``written``, the end of a
    recording."""

    recording: Recording
    t: int
    dir: Literal["in", "out"] | None = None
    data: bytes | None = None
    entry: RecordedEntry | None = None
    written: Callable[[], None] | None = None
    post: int = 0
    """See `Entry.post`."""

    @property
    def size(self) -> int:
        return _ENTRY if self.data is None else len(self.data) + _ENTRY


@define(eq=False)
class Recording:
    """The recording of one connection. All methods may be called from any task and never wait, but for `aclose`."""

    _put: Callable[[WriteJob], bool]
    _written: Callable[[Recording], Awaitable[None]]
    path: Path
    header: Header
    masking: Masking = attrs.field(factory=Masking, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    """True once nothing more is written; set in the thread."""
    _file: IO[bytes] | None = attrs.field(default=None, init=False)
    _dropped: int = attrs.field(default=0, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    def _now(self, at: float | None = None) -> int:
        return round(((trio.current_time() if at is None else at) - self.header.trio) * 1e6)

    def frame(
        self, direction: Literal["in", "out"], data: bytes | bytearray, at: float | None = None, *, post: int = 0
    ) -> None:
        """Note a message, without its framing, that goes ``out`` or has come ``in``, now or ``at`` a time on trio's
        clock. ``post``: see `Entry.post`."""
        if self._is_closed:
            return
        if self._dropped:
            dropped = RecordedEntry(t=self._now(), event="frames.dropped", count=self._dropped)
            if self._put(WriteJob(self, dropped.t, entry=dropped)):
                self._dropped = 0
        if not self._put(WriteJob(self, self._now(at), direction, bytes(data), post=post)):
            self._dropped += 1

    def event(
        self,
        name: EventName,
        request_id: RequestId | None = None,
        *,
        at: float | None = None,
        cause: str | None = None,
        reason: str | None = None,
        work_for: Reference | None = None,
        post: int = 0,
    ) -> None:
        """Note an event, which happened now or ``at`` a time on trio's clock. ``post``: see `Entry.post`."""
        if not self._is_closed:
            entry = RecordedEntry(
                t=self._now(at), event=name, id=request_id, cause=cause, reason=reason, work_for=work_for, post=post
            )
            if not self._put(WriteJob(self, entry.t, entry=entry)):
                self._dropped += 1

    def finish(self) -> None:
        """End the recording, whose last lines the thread writes. Idempotent."""
        if not self._is_closed:
            self.event("connection.ended")
            self._is_closed = True
            self._put(WriteJob(self, 0, written=_nothing))

    async def aclose(self) -> None:
        """End the recording, and wait until the last line is written, for two seconds at most, also when cancelled.
        Idempotent."""
        if not self._is_closed:
            self.event("connection.ended")
            self._is_closed = True
            await self._written(self)

    # In the thread

    def open(self) -> IO[bytes]:
        """Return the file, which is opened at the first call. Raises `OSError`."""
        if self._file is None:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()  # not to write through a link, nor with the mode of an older file
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._file = open(descriptor, "wb")  # noqa: SIM115 - closed by `close`
            self._file.write(_encoder.encode(self.header) + b"\n")
        return self._file

    def close(self) -> None:
        """Close the file. Raises `OSError`."""
        self.is_over = True
        if self._file is not None:
            self._file.close()


def _nothing() -> None:
    """Do nothing: nobody waits for the last line."""


ExchangeReference: TypeAlias = tuple[Recording, int]
"""A recording, and the number of the exchange there: see `Entry.post`."""
