"""The lines of a recording: a `Header`, then messages and events, in the order in which they were recorded.

    {"recording": 1, "id": "5f…", "role": "client", "pid": 4711, "wall": 1764208000.25, "trio": 71.5, "network": "pipe"}
    {"t": 1840, "dir": "out", "bytes": 97, "message": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": …}}
    {"t": 2210, "event": "handler.began", "id": 1}

``t`` is in microseconds since the header. `read_recording` reads the lines one by one, so a long recording needs no
more memory than a short one. A `Recording` writes the file of one connection: the thread of the `Recorder` carries out
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
"""Maximum bytes of a line that is read."""
_HEAVIEST: Final = 64 * 1024 * 1024
"""Maximum bytes that a line takes in memory if it is read completely. Many small values take thirty times their
length."""
_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]

EventName: TypeAlias = Literal[
    "process.started",
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
"""Events of a recording: what happened without a message on the wire.

- ``process.started``: the client started the server as the child process ``pid``.
- ``call.began``: this side made a request. ``for`` is the request it was made for, if any, which can be in another
  recording of the process.
- ``call.left``: the caller left the request.
- ``handler.began``: the handler of a request started.
- ``cancel.received``: the request was cancelled. ``cause`` says why.
- ``cancel.delivered``: the handler resumed with `Cancelled`, so its ``finally`` begins.
- ``handler.returned``: the handler function ended.
- ``cleanup.done``: the handler and all its tasks ended.
- ``frames.dropped``: ``count`` messages arrived faster than the thread could write them.
- ``recording.full``: nothing more is written.
- ``unreadable``: input arrived that isn't a message.
- ``connection.ended``: the connection ended.
"""


class BadRecording(MCPError):
    """Raised if a file isn't a recording, or has an invalid line. ``line`` is the number of the line, starting at 1."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a recording, which describes the connection."""

    recording: int
    """Version of the file format. Only `VERSION` can be read."""
    id: str
    """Id of the recording. Events in other recordings of the process use this id to refer to this recording."""
    role: str
    """The side that recorded: ``client``, ``server`` or ``relay``. A ``relay`` is between client and server. In its
    recordings, ``out`` is the direction from client to server."""
    pid: int
    """Id of the process that wrote the recording."""
    wall: _Seconds
    """Seconds since the epoch when ``t`` is 0."""
    trio: _Seconds = 0.0
    """Time of trio's clock when ``t`` is 0."""
    network: str | None = None
    """The transport of the messages. See `Transport.network`."""
    software: str = ""
    """Name and version of the software that wrote the recording."""


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identifies a request in this recording or in the recording of another connection."""

    recording: str
    id: int | str
    post: int = 0
    """See `RecordedEntry.post`."""


class RecordedEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a recording after the header. It is a message, with its direction in ``dir``, or an event, with its
    name in ``event``."""

    t: _Time
    """Microseconds since the header."""
    dir: Literal["in", "out"] | None = None
    """``in`` for a received message, ``out`` for a sent one."""
    bytes: int = 0
    """Length of the message on the wire, in bytes."""
    message: Any = None
    """The message with its secrets masked: an object, or a list for a batch; `None` if the text wasn't JSON."""
    cut: bool = False
    """True if the message was too long to be recorded completely. The entry then omits the message's parameters and
    result."""
    event: str | None = None
    """Name of the event, an `EventName`."""
    id: int | str | None = None
    """Id of the request that the event is about."""
    cause: str | None = None
    """Cause of a cancellation."""
    reason: str | None = None
    """A reason, as readable text."""
    work_for: Reference | None = msgspec.field(default=None, name="for")
    """The request whose handler made this call."""
    count: int = 0
    """Number of messages that were dropped."""
    pid: int = 0
    """Id of the process that was started."""
    post: int = 0
    """Number of the HTTP exchange that the message or request belongs to; else 0.

    It is only set if one recording has the messages of many clients, who can use the same ids.
    """

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages in this line of the recording: one message, or all messages of a batch. Empty if the line is an
        event."""
        message: Any = self.message
        found = cast("list[Any]", message) if isinstance(message, list) else [message]
        return [each for each in found if isinstance(each, dict)]


class _MessageHead(msgspec.Struct, omit_defaults=True):
    """The members of a message that are recorded even if the message is too long."""

    jsonrpc: str | msgspec.UnsetType = msgspec.UNSET
    id: int | str | msgspec.UnsetType | None = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET


_beginnings: Final = msgspec.json.Decoder(list[_MessageHead] | _MessageHead)


def head_of(data: bytes | msgspec.Raw) -> Any:
    """Return a copy of the message ``data`` without its parameters and result. Return a list for a batch, and `None` if
    ``data`` isn't a message."""
    try:
        return msgspec.to_builtins(_beginnings.decode(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class _CutEntry(RecordedEntry, frozen=True, kw_only=True):
    """A line of a recording with a message that is too large to be decoded."""

    message: msgspec.Raw = msgspec.Raw(b"null")


@frozen
class Recorded:
    """An opened recording, with its ``header`` and the size of its file in bytes. To read the entries, iterate over
    this object."""

    path: str
    header: Header
    size: int

    def __iter__(self) -> Iterator[RecordedEntry]:
        """Read the entries from the file one by one. Raises `BadRecording` for an invalid line.

        The last line can be incomplete, if the process died while it was written; it is left out.
        """
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
                        return  # the line is incomplete, because the process died when it wrote the line
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
    """Return whether ``message``, which was decoded from ``line``, has more than `MOST_LEVELS` levels of nesting."""
    return line.count(b"[") + line.count(b"{") > MOST_LEVELS and is_too_deep(message)


def read_recording(path: str | os.PathLike[str]) -> Recorded:
    """Read the header of the recording at ``path``. To read the entries, iterate over the returned object.

    Raises `OSError`, and `BadRecording` for a file that isn't a recording or has another version of the format.
    """
    name = str(Path(path))
    with open(name, "rb") as file:
        line = _line(file, name, 1)
        size = os.fstat(file.fileno()).st_size
    try:
        header = _headers.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecording(name, 1, f"this line is not the header of a recording: {_error_text(error)}") from None
    if header.recording != VERSION:
        raise BadRecording(name, 1, f"the recording must have version {VERSION}, not {header.recording}")
    return Recorded(name, header, size)


def _line(file: Any, path: str, number: int) -> bytes:
    line: bytes = file.readline(MOST_LINE + 1)
    if len(line) > MOST_LINE:
        raise BadRecording(path, number, f"the line must have at most {MOST_LINE} bytes")
    return line


def _error_text(error: Exception) -> str:
    return f"nested in more than {MOST_LEVELS} levels" if isinstance(error, RecursionError) else str(error)[:200]


def plain_id(value: object) -> RequestId | None:
    """Return ``value`` if it is a valid request id, otherwise `None`."""
    return value if type(value) is int or type(value) is str else None


_ENTRY: Final = 200
"""Bytes that a message or an event takes in memory in addition to its text."""
_encoder: Final = msgspec.json.Encoder()


@define(eq=False)
class WriteJob:
    """A job for the thread of a `Recorder`. A job with a callback ``written`` finishes the recording, and any other job
    writes a message or an event."""

    recording: Recording
    t: int
    dir: Literal["in", "out"] | None = None
    data: bytes | None = None
    entry: RecordedEntry | None = None
    written: Callable[[], None] | None = None
    post: int = 0
    """See `RecordedEntry.post`."""

    @property
    def size(self) -> int:
        return _ENTRY if self.data is None else len(self.data) + _ENTRY


@define(eq=False)
class Recording:
    """Writes the recording of one connection. Any task can call its methods; only `aclose` waits."""

    _put: Callable[[WriteJob], bool]
    _written: Callable[[Recording], Awaitable[None]]
    path: Path
    header: Header
    masking: Masking = attrs.field(factory=Masking, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    """True once the thread writes nothing more. Only the thread sets it."""
    _file: IO[bytes] | None = attrs.field(default=None, init=False)
    _dropped: int = attrs.field(default=0, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    def _now(self, at: float | None = None) -> int:
        return round(((trio.current_time() if at is None else at) - self.header.trio) * 1e6)

    def frame(
        self, direction: Literal["in", "out"], data: bytes | bytearray, at: float | None = None, *, post: int = 0
    ) -> None:
        """Record a message that is being sent (``out``) or was received (``in``).

        Args:
            data: The message without its framing.
            at: Its time on trio's clock, now by default.
            post: See `RecordedEntry.post`.
        """
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
        pid: int = 0,
    ) -> None:
        """Record an event. ``at`` is the time of the event on trio's clock, by default now. For ``post``, see
        `RecordedEntry.post`."""
        if not self._is_closed:
            entry = RecordedEntry(
                t=self._now(at),
                event=name,
                id=request_id,
                cause=cause,
                reason=reason,
                work_for=work_for,
                post=post,
                pid=pid,
            )
            if not self._put(WriteJob(self, entry.t, entry=entry)):
                self._dropped += 1

    def finish(self) -> None:
        """Finish the recording, without waiting until its last lines are written. Idempotent."""
        if not self._is_closed:
            self.event("connection.ended")
            self._is_closed = True
            # The callback `written` does nothing, because no task waits until the recording's last line is written.
            self._put(WriteJob(self, 0, written=lambda: None))

    async def aclose(self) -> None:
        """Finish the recording, and wait up to two seconds until its last line is written, even if cancelled.
        Idempotent."""
        if not self._is_closed:
            self.event("connection.ended")
            self._is_closed = True
            await self._written(self)

    # Called in the thread

    def open(self) -> IO[bytes]:
        """Return the recording's file. The first call opens it. Raises `OSError`."""
        if self._file is None:
            with contextlib.suppress(FileNotFoundError):
                # Always create a new file: an existing file may be a link, or have other permissions.
                self.path.unlink()
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._file = open(descriptor, "wb")  # noqa: SIM115 - closed by `close`
            self._file.write(_encoder.encode(self.header) + b"\n")
        return self._file

    def close(self) -> None:
        """Close the recording's file. Raises `OSError`."""
        self.is_over = True
        if self._file is not None:
            self._file.close()


ExchangeReference: TypeAlias = tuple[Recording, int]
"""A recording, and the number of an exchange in it. See `RecordedEntry.post`."""
