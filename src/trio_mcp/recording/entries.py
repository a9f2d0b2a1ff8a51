"""Entries are the lines of a recording: a `Header`, then frames and events in the order of their writing.

    {"recording": 1, "id": "5f…", "role": "client", "pid": 4711, "wall": 1764208000.25, "trio": 71.5, "network": "pipe"}
    {"t": 1840, "dir": "out", "bytes": 97, "message": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": …}}
    {"t": 2210, "event": "handler.began", "id": 1}

``t`` are microseconds since the header. `read_recording` reads the lines back one by one, so that the length of a
recording costs no memory. A `Recording` writes the file of one connection: the thread of the `Recorder` carries out
each `WriteJob`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Final, Literal, TypeAlias, cast

import attrs
import msgspec
import trio

from ..classes import define, frozen
from ..jsonrpc.errors import MCPError
from ..jsonrpc.messages import RequestId
from ..jsonrpc.sizes import MOST_LEVELS, is_too_deep, weight_of
from .masking import Masking

VERSION: Final = 1
MOST_LINE: Final = 64 * 1024 * 1024
"""Bytes of the longest line that is read."""
_HEAVIEST: Final = 64 * 1024 * 1024
"""Maximum bytes in memory of a line that is read completely: many small values take thirty times their length."""
_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]

EventName: TypeAlias = Literal[
    "call.began",
    "call.left",
    "handler.began",
    "cancel.received",
    "cancel.delivered",
    "handler.returned",
    "cleanup.done",
    "frames.dropped",
    "recording.full",
    "unreadable",
    "connection.ended",
]
"""Events, which are not on the wire. ``call.began``: a request of ours was made, ``for`` another one, maybe of another
recording of this process; ``call.left``: its caller left. ``cancel.received``: a cancel reached the request, ``cause``
says why; ``cancel.delivered``: the handler was resumed by the cancel, so its ``finally`` begins; ``handler.returned``:
the function has ended; ``cleanup.done``: so have all its tasks. ``frames.dropped``: ``count`` frames came faster than
the thread could write; ``recording.full``: nothing more is written."""


class BadRecording(MCPError):
    """A file is no recording, or a line of the file cannot be read; ``line`` is the number of the line, from 1."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a recording."""

    recording: int
    """Version of the form; `VERSION` is read here."""
    id: str
    """Name of the recording, by which events of other recordings of the process refer to this one."""
    role: str
    """The side that recorded, ``client`` or ``server``; ``relay`` stands between the two, and ``out`` is the
    client's direction there."""
    pid: int
    """Id of the process that wrote the recording."""
    wall: _Seconds
    """Seconds since the epoch at ``t`` 0."""
    trio: _Seconds = 0.0
    """trio's clock at ``t`` 0."""
    network: str | None = None
    """The way of the messages: see `Transport.network`."""
    software: str = ""
    """Name and version of the software that wrote the recording."""


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of a recording."""

    recording: str
    id: int | str
    post: int = 0
    """See `Entry.post`."""


class RecordedEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line after the first: a frame, which has ``dir``, or an event, which has ``event``."""

    t: _Time
    """Microseconds since the header."""
    dir: Literal["in", "out"] | None = None
    """``in``: received; ``out``: sent."""
    bytes: int = 0
    """Length of the message on the wire."""
    message: Any = None
    """The message without its secrets: an object, a list for a batch; `None` where the text was not JSON."""
    cut: bool = False
    """True where the message was too long to be kept whole: its parameters and result are left out."""
    event: str | None = None
    """Name of the event: see `EventName`."""
    id: int | str | None = None
    """Id of the request that the event is about."""
    cause: str | None = None
    """Cause of a cancel."""
    reason: str | None = None
    """Words for people."""
    work_for: Reference | None = msgspec.field(default=None, name="for")
    """The request that a call was made for."""
    count: int = 0
    """Number of frames that were dropped."""
    post: int = 0
    """Number of the exchange over HTTP that the message or the request belongs to, where one recording has the messages
    of many clients, whose ids may be the same; else 0."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the frame, each of a batch by itself; empty for an event."""
        message: Any = self.message
        found = cast("list[Any]", message) if isinstance(message, list) else [message]
        return [each for each in found if isinstance(each, dict)]


class _MessageHead(msgspec.Struct, omit_defaults=True):
    """The members of a message that are kept if the message is too long."""

    jsonrpc: str | msgspec.UnsetType = msgspec.UNSET
    id: int | str | msgspec.UnsetType | None = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET


_beginnings: Final = msgspec.json.Decoder(list[_MessageHead] | _MessageHead)


def head_of(data: bytes | msgspec.Raw) -> Any:
    """Return a message without parameters and results, or a list for a batch; `None` if ``data`` isn't a message."""
    try:
        return msgspec.to_builtins(_beginnings.decode(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class _CutEntry(RecordedEntry, frozen=True, kw_only=True):
    """An entry whose message is too large to be read completely."""

    message: msgspec.Raw = msgspec.Raw(b"null")


@frozen
class Recorded:
    """A recording that is read: its ``header``, and the number of its bytes."""

    path: str
    header: Header
    size: int

    def __iter__(self) -> Iterator[RecordedEntry]:
        """Read the entries from the file, one by one. Raises `BadRecording` for a line that is none; the last line may
        be torn, where the process died."""
        with open(self.path, "rb") as file:
            _line(file, self.path, 1)
            number = 1
            while line := _line(file, self.path, number := number + 1):
                if line.isspace():
                    continue
                try:
                    yield _entry(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    if not line.endswith(b"\n"):
                        return  # torn
                    raise BadRecording(self.path, number, _error_text(error)) from None


_headers: Final = msgspec.json.Decoder(Header)
_entries: Final = msgspec.json.Decoder(RecordedEntry)
_cut_entries: Final = msgspec.json.Decoder(_CutEntry)


def _entry(line: bytes) -> RecordedEntry:
    if weight_of(line) > _HEAVIEST:
        cut = _cut_entries.decode(line)
        return msgspec.structs.replace(cut, message=head_of(cut.message), cut=True)
    entry = _entries.decode(line)
    if nests_too_deep(line, entry.message):
        raise RecursionError
    return entry


def nests_too_deep(line: bytes, message: Any) -> bool:
    """Return whether ``message``, which was read from ``line``, has more than `MOST_LEVELS` levels."""
    return line.count(b"[") + line.count(b"{") > MOST_LEVELS and is_too_deep(message)


def read_recording(path: str | os.PathLike[str]) -> Recorded:
    """Read the header of the recording at ``path``; iterate over the result for its entries.

    Raises `OSError`, and `BadRecording` for a file that is no recording, or one of a later version.
    """
    name = str(Path(path))
    with open(name, "rb") as file:
        line = _line(file, name, 1)
        size = os.fstat(file.fileno()).st_size
    try:
        header = _headers.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecording(name, 1, f"no header of a recording: {_error_text(error)}") from None
    if header.recording != VERSION:
        raise BadRecording(name, 1, f"a recording of version {header.recording}, and version {VERSION} is read here")
    return Recorded(name, header, size)


def _line(file: Any, path: str, number: int) -> bytes:
    line: bytes = file.readline(MOST_LINE + 1)
    if len(line) > MOST_LINE:
        raise BadRecording(path, number, f"a line of more than {MOST_LINE} bytes")
    return line


def _error_text(error: Exception) -> str:
    return f"nested in more than {MOST_LEVELS} levels" if isinstance(error, RecursionError) else str(error)[:200]


def plain_id(value: object) -> RequestId | None:
    """Return a ``value`` that may be the id of a request, else `None`."""
    return value if type(value) is int or type(value) is str else None


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
            # No task waits for the last line.
            self._put(WriteJob(self, 0, written=lambda: None))

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


ExchangeReference: TypeAlias = tuple[Recording, int]
"""A recording, and the number of the exchange there: see `Entry.post`."""
