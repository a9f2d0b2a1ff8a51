"""Server-sent events (WHATWG HTML, section 9.2.6): encodes JSON lines as events, and parses events from bytes
(`EventReader`). This module has no I/O and no timers.

`ReplayLog` stores the events of one session, so that clients that reconnect can receive missed events (2025-11-25
transports, Resumability and Redelivery).
"""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from ..classes import define, value
from ..concurrency.fair_share import HeldBytes

KEEP_ALIVE: Final = b":\n\n"
"""A comment in an event stream, which isn't an event and doesn't move the cursor. It may be sent between any two
events."""

STREAM_HEADERS: Final = (
    b"Content-Type: text/event-stream\r\n"
    b"Cache-Control: no-cache, no-transform\r\n"
    b"X-Accel-Buffering: no\r\n"  # so that nginx doesn't buffer events: 2026-07-28 Streamable HTTP, Receiving Messages
)
"""The headers of a response that is a stream of events."""

_BEFORE: Final = b"event: message\ndata: "
_BETWEEN: Final = b"\n\nevent: message\ndata: "


def events(lines: bytes | bytearray) -> bytes:
    """Encode JSON texts, one on each line of ``lines``, as server-sent events. Each line ends in a newline."""
    if not lines.isascii():
        lines = _escaped(lines)
    if lines.find(b"\n") < len(lines) - 1:
        lines = lines[:-1].replace(b"\n", _BETWEEN) + b"\n"
    return b"".join((_BEFORE, lines, b"\n"))


def identified_events(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """Encode pairs of an event id and a JSON text as server-sent events. Clients send the last id to resume the
    stream."""
    return b"".join(
        [
            b"id: %b\nevent: message\ndata: %b\n" % (event_id.encode(), line if line.isascii() else _escaped(line))
            for event_id, line in pairs
        ]
    )


def numbered_events(name: str, first: int, lines: Sequence[bytes]) -> bytes:
    """Encode ``lines`` as server-sent events whose ids are ``NAME-NUMBER``. The first event has the number
    ``first``."""
    head = b"id: %b-" % name.encode()
    texts = lines if all(map(bytes.isascii, lines)) else map(_escaped, lines)
    return b"".join(
        [b"%b%d\nevent: message\ndata: %b\n" % (head, number, text) for number, text in enumerate(texts, first)]
    )


def priming_event(event_id: str) -> bytes:
    """Return a server-sent event that has an id, but no data.

    Its id allows the client to resume the stream before the first message (2025-11-25 transports, Sending Messages to
    the Server).
    """
    return b"id: %b\ndata: \n\n" % event_id.encode()


def retry_line(milliseconds: int) -> bytes:
    """Return the ``retry`` line of a server-sent event. It sets how long clients wait before they reconnect.

    An event must follow directly, because older clients would interpret a separate line as an event without data.
    """
    return b"retry: %d\n" % milliseconds


def _escaped(lines: bytes | bytearray) -> bytes | bytearray:
    """Return ``text`` with U+2028, U+2029 and U+0085 escaped, because some deployed parsers mistake them for line ends.

    In JSON they occur only inside strings.
    """
    if b"\xe2\x80" in lines:
        lines = lines.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    return lines.replace(b"\xc2\x85", rb"\u0085")


_BOM: Final = b"\xef\xbb\xbf"
_LONGEST_RETRY: Final = 10
_COLON: Final = ord(":")
_FIELDS: Final = frozenset((b"data", b"event", b"id", b"retry"))
_FIRST: Final = frozenset(b"deir")
"""The first characters of lines with fields. All other lines of a server are skipped quickly."""


class EventTooLong(Exception):
    """Raised if the server has sent an event of more than ``limit`` bytes. No more events can be read from the
    stream."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the event is longer than {limit} bytes")
        self.limit = limit


@value
class Event:
    """A complete server-sent event.

    ``id`` is the latest event id that the server has sent. It is empty if the server has sent no id.
    """

    name: str
    data: bytes
    id: str


class EventReader:
    """Parses a stream of server-sent events, which may continue over several connections.

    The lines of one event may have ``max_event_bytes`` together, without comments. Each comment may have as many.
    """

    def __init__(self, max_event_bytes: int) -> None:
        self._max = max_event_bytes
        self.last_event_id = ""
        """The cursor to resume with, which is the last id of a complete event. If it is empty, the stream can't be
        resumed."""
        self.retry: int | None = None
        """Milliseconds to wait before reconnecting. `None` unless the server has set a value."""
        self.drop_unfinished()

    def drop_unfinished(self) -> None:
        """Drop an incomplete event, because the connection has ended. The next bytes come from a new connection.

        The last event id and ``retry`` are kept.
        """
        self._first = True
        """Whether no line has ended so far, so that the first line may begin with a byte order mark."""
        self._after_cr = False
        """Whether the last byte was a carriage return. A newline that follows belongs to the same line end."""
        self._unfinished = bytearray()
        """The beginning of an incomplete line."""
        self._data: list[bytes] = []
        self._name = b""
        self._id: str | None = None
        """The id in the lines of the incomplete event."""
        self._size = 0
        """Number of bytes of the incomplete event, without its incomplete line."""
        self._too_long = False

    def feed(self, chunk: bytes | bytearray) -> list[Event]:
        """Parse more bytes of the stream, and return the events that are now complete.

        If an event is too long, the events before it are returned first, then `EventTooLong` is raised.
        """
        if self._too_long:
            raise EventTooLong(self._max)
        if self._unfinished and b"\n" not in chunk and b"\r" not in chunk:  # a fast path for parts of a long line
            lines, last = list[bytes](), chunk
        else:
            *lines, last = self._cut(bytes(chunk))
        found: list[Event] = []
        if lines:
            self._unfinished += lines[0]
            lines[0] = bytes(self._unfinished)
            self._unfinished.clear()
            if self._first:
                self._first = False
                lines[0] = lines[0].removeprefix(_BOM)
            self._read(lines, found)
        self._unfinished += last
        bom = len(_BOM) if self._first and self._unfinished.startswith(_BOM) else 0
        if self._size + len(self._unfinished) - bom > self._max:
            self._too_long = True
        if self._too_long and not found:
            raise EventTooLong(self._max)
        return found

    def _cut(self, text: bytes) -> list[bytes]:
        """Split ``text`` into lines. The last line of the result is incomplete."""
        if self._after_cr and text:
            self._after_cr = False
            text = text.removeprefix(b"\n")
        if b"\r" in text:
            self._after_cr = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return text.split(b"\n")

    def _read(self, lines: list[bytes], found: list[Event]) -> None:
        """Parse whole ``lines`` of the stream. When a blank line ends an event, add the event to ``found``."""
        for line in lines:
            if line:
                size = self._size + len(line)
                if size > self._max:
                    self._too_long = True
                    return
                first = line[0]
                if first != _COLON:
                    self._size = size
                    if first in _FIRST:
                        self._field(line)
            elif self._size:
                self._dispatch(found)

    def _dispatch(self, found: list[Event]) -> None:
        """Complete the current event at a blank line, and add the event to ``found`` if it has data.

        The event's id is stored even without data.
        """
        if self._id is not None:
            self.last_event_id, self._id = self._id, None
        if self._data:
            name = self._name.decode("utf-8", "replace") or "message"
            found.append(Event(name, b"\n".join(self._data), self.last_event_id))
            self._data = []
        self._name = b""
        self._size = 0

    def _field(self, line: bytes) -> None:
        colon = line.find(b":")
        field = line if colon < 0 else line[:colon]
        if field not in _FIELDS:
            return
        # Collect the pieces of content, and join them only once, because the content may be long.
        content = b"" if colon < 0 else line[colon + (2 if line.startswith(b" ", colon + 1) else 1) :]
        if field == b"data":
            self._data.append(content)
        elif field == b"event":
            self._name = content
        elif field == b"id":
            if b"\0" not in content:
                self._id = content.decode("utf-8", "replace")
        elif content.isdigit():
            # Accept at most ten digits (115 days in milliseconds): Python refuses to convert thousands of digits.
            self.retry = int(content.lstrip(b"0")[:_LONGEST_RETRY] or b"0")


_OVERHEAD: Final = 256
"""Approximate memory overhead of an event, and of a stream, in bytes."""
_LONGEST_NUMBER: Final = 18


class BadCursor(Exception):
    """Raised if the server can't resume a stream after the event id that a reconnecting client has sent.

    The message gives the reason. Continuing another stream would hide that the client has missed events.
    """


@value
class Replay:
    """The events of one stream that follow a given event id, oldest first. Each event has its own id.

    If ``finished`` is true, no more events will follow.
    """

    stream: str
    events: list[tuple[str, bytes]]
    finished: bool


@define(eq=False)
class _Piece:
    """A group of events of one stream that were added to the log in one call."""

    lines: list[bytes]
    """JSON lines of the events, newest first."""


@define(eq=False)
class _ReplayStream:
    name: str
    pieces: deque[_Piece] = attrs.Factory(deque[_Piece])
    count: int = 0
    """Number of events in ``pieces``. The numbers of all kept events are consecutive, up to ``last``."""
    size: int = 0
    """Approximate size of ``pieces`` in bytes."""
    awaited: bytes | None = None
    """The JSON line of the newest event, if the client is disconnected and will fetch this event later. The event isn't
    in ``pieces``."""
    last: int = 0
    """The number of the stream's last event, whether or not that event is still stored. ``0`` before the first
    event."""

    def event_id(self, number: int) -> str:
        return f"{self.name}-{number}"

    @property
    def dropped(self) -> int:
        """The number of the newest event that was dropped from the stream. 0 if no event was dropped."""
        return self.last - self.count - (self.awaited is not None)


class ReplayLog:
    """Stores the events of all streams of one session, so that clients can reconnect and receive missed events.

    The oldest events are dropped if a stream has more than ``max_stream_bytes``, all streams together have more than
    ``max_bytes``, or the memory limit of ``held`` is exceeded.

    While the client of a stream is away, the newest event of the stream, such as the result of a call, is kept whatever
    its size, as long as ``held`` allows. It doesn't count against the limits of the stream and of the session.

    Event ids are ``STREAM-NUMBER``. Stream names are unique to a session, so an id of another session is unknown here.
    """

    def __init__(self, max_stream_bytes: float, max_bytes: float, held: HeldBytes | None = None) -> None:
        self._max_stream = max_stream_bytes
        self._max = max_bytes
        self._held = held
        self._is_closed = False
        self._session = secrets.token_hex(4)
        self._opened = 0
        self._streams: dict[str, _ReplayStream] = {}
        self._finished: dict[str, float] = {}
        """Finished streams, in the order of finishing, with the time until which each is kept. Streams whose newest
        event the client will fetch are not included."""
        self._fetched_later: dict[str, float] = {}
        """Finished streams whose newest event the client will fetch, with the time until which each is kept."""
        self._oldest_first: OrderedDict[_Piece, _ReplayStream] = OrderedDict()
        self._awaited: OrderedDict[str, None] = OrderedDict()
        """Streams whose newest event the client will fetch, in the order of these events."""
        self.size = 0
        """Approximate size of the whole log in bytes, without the events that clients will fetch."""

    def open(self) -> str:
        """Add a new stream to the log, and return its name."""
        self._opened += 1
        stream = _ReplayStream(f"{self._session}.{self._opened}")
        self._streams[stream.name] = stream
        self._add(_OVERHEAD)
        self._shrink()
        return stream.name

    def cursor(self, name: str) -> str:
        """Return the id of the last event of the stream ``name``. If the stream has no event yet, return the id of an
        event without data, which begins the stream."""
        stream = self._streams[name]
        return stream.event_id(stream.last)

    def extend(self, name: str, lines: Sequence[bytes], *, awaited: bool = False) -> int:
        """Add lines as events to a stream that isn't finished. Return the number of the first new event.

        Set ``awaited`` if the client is disconnected, and will fetch these events later.
        """
        stream = self._streams[name]
        first = stream.last + 1
        if not lines:
            return first
        piece = _Piece([*lines[::-1]])
        if (before := self._pop_awaited(stream)) is not None:
            piece.lines.append(before)
        newest = piece.lines.pop(0) if awaited and not self._is_closed else None
        if piece.lines:
            size = sum(map(len, piece.lines)) + len(piece.lines) * _OVERHEAD
            stream.count += len(piece.lines)
            stream.pieces.append(piece)
            stream.size += size
            self._add(size)
            self._oldest_first[piece] = stream
        if newest is not None:
            stream.awaited = newest
            self._awaited[name] = None
            if self._held is not None:
                self._held.add(len(newest) + _OVERHEAD)
        stream.last += len(lines)
        while (excess := stream.size - self._max_stream) > 0:
            self._drop_oldest(stream, excess)
        self._shrink()
        return first

    def finish(self, name: str, keep_until: float) -> None:
        """Mark a stream as finished. After the time ``keep_until``, `drop_finished` may drop it."""
        finished = self._finished if self._streams[name].awaited is None else self._fetched_later
        finished[name] = keep_until
        self._shrink()

    def drop_finished(self, now: float) -> None:
        """Drop each finished stream whose time ``keep_until``, as passed to `finish`, is at or before ``now``."""
        for finished in (self._finished, self._fetched_later):
            for name in [name for name, keep_until in finished.items() if keep_until <= now]:
                self._forget(name)

    def close(self) -> None:
        """Drop all events, and store no further ones, because the session has ended."""
        self._is_closed = True
        self._max_stream = self._max = 0
        self._shrink()
        for name in tuple(self._awaited):
            self._pop_awaited(self._streams[name])
        if self._held is not None:
            self._held.release()
            self._held = None

    def after(self, cursor: str) -> Replay:
        """Return the events that follow the event id ``cursor`` in its stream.

        Raises `BadCursor` if the stream can't be resumed there.
        """
        stream, number = self._find(cursor)
        if number < stream.dropped:
            raise BadCursor("can't resume the stream: the events after this event id are no longer stored")
        return self._replay(stream, number)

    def retained_after(self, cursor: str) -> tuple[Replay, bool]:
        """Return the stored events after the event id ``cursor``, and whether any events after ``cursor`` were dropped.

        Raises `BadCursor` if no stream has this event id.
        """
        stream, number = self._find(cursor)
        dropped = stream.dropped
        return self._replay(stream, max(number, dropped)), number < dropped

    def _find(self, cursor: str) -> tuple[_ReplayStream, int]:
        name, _, digits = cursor.rpartition("-")
        stream = self._streams.get(name)
        if stream is None or not (digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_NUMBER):
            raise BadCursor(
                "can't resume the stream: this session has no stream with this event id, or no longer stores it"
            )
        number = int(digits)
        if number > stream.last or stream.event_id(number) != cursor:
            raise BadCursor("can't resume the stream: this session has no event with this id")
        return stream, number

    def _replay(self, stream: _ReplayStream, number: int) -> Replay:
        lines = [line for piece in stream.pieces for line in reversed(piece.lines)]
        if stream.awaited is not None:
            lines.append(stream.awaited)
        behind = enumerate(lines[number - stream.dropped :], number + 1)
        events = [(stream.event_id(each), line) for each, line in behind]
        is_finished = stream.name in self._finished or stream.name in self._fetched_later
        return Replay(stream.name, events, is_finished)

    def _add(self, count: int) -> None:
        self.size += count
        if self._held is not None:
            self._held.add(count)

    @property
    def _is_too_much(self) -> bool:
        return self._held is not None and self._held.is_too_much

    def _shrink(self) -> None:
        """Drop streams and events until the log doesn't exceed its limits any more.

        Finished streams without events are dropped first, then the oldest events.

        An event that a disconnected client will fetch is dropped last, and only if the server has no memory for this
        event.
        """
        while self.size > self._max or self._is_too_much:
            finished = next(iter(self._finished), None)
            if finished is not None and not self._streams[finished].count:
                self._forget(finished)
            elif self._oldest_first:
                # If the server lacks memory, drop one event at a time: it's unknown how much memory must be freed.
                self._drop_oldest(next(iter(self._oldest_first.values())), max(self.size - self._max, 1))
            elif self._awaited and self._is_too_much:
                self._pop_awaited(self._streams[next(iter(self._awaited))])
            else:
                return

    def _pop_awaited(self, stream: _ReplayStream) -> bytes | None:
        """If the newest event of a stream is kept for a disconnected client, remove and return it. Otherwise return
        `None`."""
        line, stream.awaited = stream.awaited, None
        if line is not None:
            del self._awaited[stream.name]
            if self._held is not None:
                self._held.add(-len(line) - _OVERHEAD)
            if stream.name in self._fetched_later:
                self._finished[stream.name] = self._fetched_later.pop(stream.name)
        return line

    def _drop_oldest(self, stream: _ReplayStream, excess: float) -> None:
        """Drop the oldest events of a stream until ``excess`` bytes are free, or until all events of the oldest
        `_Piece` are dropped."""
        piece = stream.pieces[0]
        lines, count, size = piece.lines, len(piece.lines), 0
        while lines and size < excess:  # a long new event may need as much memory as many short events
            size += len(lines.pop()) + _OVERHEAD
        if not lines:
            stream.pieces.popleft()
            del self._oldest_first[piece]
        stream.count -= count - len(lines)
        stream.size -= size
        self._add(-size)

    def _forget(self, name: str) -> None:
        stream = self._streams.pop(name)
        self._pop_awaited(stream)
        del self._finished[name]
        while stream.count:
            self._drop_oldest(stream, math.inf)
        self._add(-_OVERHEAD)
