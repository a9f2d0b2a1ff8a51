"""FrameLog is a recording in memory: the last messages of the connection, without secrets, for a list and a picture."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import trio

from ..classes import define, frozen
from ..protocol.fields import JSONObject
from ..recording.entries import Entry, Header, Recorded
from ..recording.recorder import Recorder, new_header
from ..recording.svg import MOST_ROWS, svg
from ..recording.timeline import timeline
from ..recording.writing import Job, Recording

MOST_FRAMES: Final = 1000
_MOST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of all kept messages."""
_LONGEST: Final = 1024 * 1024
"""Bytes of a message that is kept whole."""
_MOST_NAME: Final = 200
_encoder: Final = msgspec.json.Encoder()
_entries: Final = msgspec.json.Decoder(Entry)
_any: Final = msgspec.json.Decoder()


class _Beginning(msgspec.Struct, omit_defaults=True):
    """The kept part of a long message."""

    id: int | str | None = None
    method: str | None = None


_beginnings: Final = msgspec.json.Decoder(_Beginning)


@define(eq=False)
class KeptFrame:
    """A message or an event, with its number; ``line`` is its `Entry` as JSON."""

    number: int
    line: bytes = attrs.field(repr=False)
    summary: JSONObject
    """Line for the list."""

    @property
    def entry(self) -> Entry:
        """The entry, read back."""
        return _entries.decode(self.line)


@frozen
class _KeptRecording(Recorded):
    frames: tuple[KeptFrame, ...] = attrs.field(kw_only=True)

    def __iter__(self) -> Iterator[Entry]:
        return (frame.entry for frame in self.frames)


class FrameLog(Recorder):
    """Keeps the messages of the present connection. ``added`` is called with each, and must be quick."""

    def __init__(self, added: Callable[[KeptFrame], None]) -> None:
        super().__init__(os.devnull)  # nothing is written there: `start` makes recordings that end here
        self._added = added
        self._header: Header | None = None
        self._frames = deque[KeptFrame]()
        self._bytes = 0
        self._number = 0

    def start(self, role: str, network: str | None = None) -> Recording | None:
        """Begin with the messages of a new connection: see `Recorder.start`."""
        self._header = header = new_header(role, network)
        self._frames.clear()
        self._bytes = 0
        return Recording(self.put, self.written, Path(os.devnull), header)

    def put(self, job: Job) -> bool:
        """Keep a message or an event, and drop the oldest ones: see `Recorder.put`."""
        header = self._header
        if header is None or job.recording.header is not header:  # the last words of an older connection
            return True
        entry = job.entry if job.entry is not None else _entry_of(job)
        self._number += 1
        frame = KeptFrame(self._number, _encoder.encode(entry), _summary(self._number, entry, header.wall))
        self._frames.append(frame)
        self._bytes += len(frame.line)
        while len(self._frames) > MOST_FRAMES or self._bytes > _MOST_BYTES:
            self._bytes -= len(self._frames.popleft().line)
        self._added(frame)
        return True

    async def written(self, recording: Recording) -> None:
        """Return at once: everything is kept."""
        await trio.lowlevel.checkpoint()

    @property
    def frames(self) -> tuple[KeptFrame, ...]:
        """The kept messages and events, oldest first."""
        return tuple(self._frames)

    def message(self, number: int) -> Any:
        """Return the message with this number, masked; for an event, the event. Raises `KeyError`."""
        for frame in self._frames:
            if frame.number == number:
                entry = frame.entry
                return entry.message if entry.event is None else msgspec.to_builtins(entry)
        raise KeyError(number)

    def picture(self, begin: float, end: float, title: str) -> str:
        """Return a picture of the last requests between two times on trio's clock."""
        if self._header is None:
            return svg(timeline([]), title)
        first, last = ((at - self._header.trio) * 1e6 for at in (begin, end))
        frames = tuple(frame for frame in self._frames if first <= frame.entry.t <= last)
        drawn = timeline([_KeptRecording("", self._header, 0, frames=frames)])
        return svg(attrs.evolve(drawn, requests=drawn.requests[-MOST_ROWS:]), title)


def _entry_of(job: Job) -> Entry:
    assert job.data is not None, "a message or an event"
    message: Any = None
    cut = len(job.data) > _LONGEST
    try:
        if cut:
            message = msgspec.to_builtins(_beginnings.decode(job.data))
        else:
            message = job.recording.masking.masked(_any.decode(job.data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # no JSON, and what it is may hold secrets
    return Entry(t=job.t, dir=job.dir, bytes=len(job.data), message=message, cut=cut)


def _summary(number: int, entry: Entry, wall: float) -> JSONObject:
    message = entry.messages[0] if entry.messages else {}
    method, kind = message.get("method"), "event"
    if entry.event is None:
        kind = "request" if "id" in message else "notification"
        if method is None:
            kind = "error" if "error" in message else "result" if "id" in message else "unreadable"
    words = entry.event if entry.event is not None else method if isinstance(method, str) else ""
    given = entry.id if entry.event is not None else message.get("id")
    return {
        "what": "frame",
        "n": number,
        "at": wall * 1000 + entry.t / 1000,
        "dir": entry.dir,
        "bytes": entry.bytes,
        "kind": kind,
        "words": words[:_MOST_NAME],
        "id": None if given is None else str(given)[:_MOST_NAME],
    }
