"""FrameLog: stores the latest messages of the connection to the inspected server in memory, for the web inspector's
list and timeline.

A message is stored as received. When a page first shows a message, a thread masks its secrets.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import trio

from ..classes import frozen
from ..protocol.fields import JSONObject
from ..recording.entries import Header, Recorded, RecordedEntry, Recording, WriteJob
from ..recording.recorder import Recorder, entry_of, new_header
from ..recording.svg import MOST_ROWS, svg
from ..recording.timeline import timeline

MOST_FRAMES: Final = 1000
_MOST_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of all stored messages."""
_LONGEST: Final = 1024 * 1024
"""Maximum bytes of a message that is stored whole."""
_MOST_NAME: Final = 200
_encoder: Final = msgspec.json.Encoder()
_entries: Final = msgspec.json.Decoder(RecordedEntry)


class _FrameHead(msgspec.Struct):
    """The fields of an MCP message that the web inspector's message list shows."""

    id: int | str | msgspec.UnsetType | None = msgspec.UNSET
    method: str | None = None
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _CancelHead(msgspec.Struct):
    """The parameters of ``notifications/cancelled`` that the web inspector's message list shows."""

    requestId: int | str | None = None


_heads: Final = msgspec.json.Decoder(list[_FrameHead] | _FrameHead)


class LoggedFrame:
    """A numbered message or event of the connection to the inspected server. ``summary`` is its line in the web
    inspector's list."""

    def __init__(
        self, number: int, job: WriteJob, wall: float, methods: dict[tuple[str | None, int | str], str]
    ) -> None:
        self.number = number
        self.t = job.t
        self.size = job.size
        self.summary = _summary(number, job, wall, methods)
        self._job: WriteJob | None = job
        self._line = b""

    @property
    def entry(self) -> RecordedEntry:
        """The stored message or event, with its secrets masked.

        The first use searches the message for secrets, so use this property in a thread.
        """
        job = self._job
        if job is not None:
            entry = entry_of(job, _LONGEST) if job.entry is None else job.entry
            self._line, self._job = _encoder.encode(entry), None
        return _entries.decode(self._line)


@frozen
class _LoggedRecording(Recorded):
    frames: tuple[LoggedFrame, ...] = attrs.field(kw_only=True)

    def __iter__(self) -> Iterator[RecordedEntry]:
        return (frame.entry for frame in self.frames)


class FrameLog(Recorder):
    """A recorder that keeps the messages of the current connection to the inspected server in memory.

    The function ``added`` is called with each message, and must return quickly.
    """

    def __init__(self, added: Callable[[LoggedFrame], None]) -> None:
        super().__init__(os.devnull)  # the base class requires a file name, but this class never opens a file
        self._added = added
        self._header: Header | None = None
        self.pid: int | None = None
        """Process id of the server, if the inspector started the server as a child process."""
        self._frames = deque[LoggedFrame]()
        self._bytes = 0
        self._number = 0
        self._looking = trio.CapacityLimiter(1)
        self._methods: dict[tuple[str | None, int | str], str] = {}
        """Methods of the unanswered requests, by direction and id, oldest first."""

    def _start(self, role: str, network: str | None = None) -> Recording | None:
        """Drop all stored messages, and store the messages of a new connection from now on. See `Recorder._start`."""
        self._header = header = new_header(role, network)
        self._frames.clear()
        self._methods.clear()
        self._bytes, self.pid = 0, None
        return Recording(self._put, self._written, Path(os.devnull), header)

    def _put(self, job: WriteJob) -> bool:
        """Store a message or an event. If there are too many, the oldest are dropped. See `Recorder._put`."""
        header = self._header
        if header is None or job.recording.header is not header:  # ignore messages of an earlier connection
            return True
        if job.entry is not None and job.entry.event == "process.started":
            self.pid = job.entry.pid
        self._number += 1
        frame = LoggedFrame(self._number, job, header.wall, self._methods)
        self._frames.append(frame)
        self._bytes += frame.size
        while len(self._frames) > MOST_FRAMES or self._bytes > _MOST_BYTES:
            self._bytes -= self._frames.popleft().size
        self._added(frame)
        return True

    async def _written(self, recording: Recording) -> None:
        """Do nothing but run a trio checkpoint, because `_put` stores messages immediately."""
        await trio.lowlevel.checkpoint()

    @property
    def frames(self) -> tuple[LoggedFrame, ...]:
        """The stored messages and events, oldest first."""
        return tuple(self._frames)

    async def message(self, number: int) -> Any:
        """Return the stored message or event with this number, with its secrets masked. Raises `KeyError` if it was
        dropped."""
        kept = {frame.number: frame for frame in self._frames}[number]
        entry = await trio.to_thread.run_sync(lambda: kept.entry, limiter=self._looking)
        return entry.message if entry.event is None else msgspec.to_builtins(entry)

    async def picture(self, begin: float, end: float, title: str) -> str:
        """Return an SVG timeline of the requests between two times on trio's clock. The timeline shows at most the last
        `MOST_ROWS` requests."""
        header, frames = self._header, self.frames

        def drawn() -> str:
            if header is None:
                return svg(timeline([]), title)
            first, last = ((at - header.trio) * 1e6 for at in (begin, end))
            kept = tuple(frame for frame in frames if first <= frame.t <= last)
            found = timeline([_LoggedRecording("", header, 0, frames=kept)])
            return svg(attrs.evolve(found, requests=found.requests[-MOST_ROWS:]), title)

        return await trio.to_thread.run_sync(drawn, limiter=self._looking)


def _summary(number: int, job: WriteJob, wall: float, methods: dict[tuple[str | None, int | str], str]) -> JSONObject:
    """Return the line for a message in the web inspector's list. To save time, only the fields that the line shows are
    parsed.

    ``methods`` has the methods of requests, which name the lines of their responses.
    """
    kind, words, given = "event", "", None
    if job.entry is not None:
        words, given = job.entry.event or "", job.entry.id
    else:
        head = _head(job)
        if head is None:
            kind = "unreadable"
        elif head.method is not None:
            kind, words = ("notification" if head.id is msgspec.UNSET else "request"), head.method
            if isinstance(head.id, int | str) and len(str(head.id)) <= _MOST_NAME:
                methods[job.dir, head.id] = words[:_MOST_NAME]
                if len(methods) > MOST_FRAMES:
                    del methods[next(iter(methods))]
        elif head.error is not msgspec.UNSET:
            kind = "error"
        else:
            kind = "unreadable" if head.id is msgspec.UNSET else "result"
        given = None if head is None or head.id is msgspec.UNSET else head.id
        if kind in ("result", "error") and isinstance(given, int | str):
            words = methods.pop(("in" if job.dir == "out" else "out", given), "")
        elif words == "notifications/cancelled" and head is not None:
            given = _cancelled_id(head)
    masked = job.recording.masking.masked
    return {
        "what": "frame",
        "n": number,
        "at": wall * 1000 + job.t / 1000,
        "dir": job.dir,
        "bytes": 0 if job.data is None else len(job.data),
        "kind": kind,
        "words": masked(words[:_MOST_NAME]),
        "id": None if given is None else masked(str(given)[:_MOST_NAME]),
    }


def _head(job: WriteJob) -> _FrameHead | None:
    """Parse only those fields of a message that the web inspector's list shows. For a batch, parse the fields of its
    first message."""
    assert job.data is not None, "a message or an event"
    try:
        found: list[_FrameHead] | _FrameHead = _heads.decode(job.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return (found[0] if found else None) if isinstance(found, list) else found


def _cancelled_id(head: _FrameHead) -> int | str | None:
    try:
        return msgspec.json.decode(head.params, type=_CancelHead).requestId
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
