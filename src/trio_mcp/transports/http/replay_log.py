"""ReplayLog: stores the events of one session, so that clients that reconnect can receive missed events (2025-11-25
transports, Resumability and Redelivery)."""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

import attrs

from ...classes import define, value
from ...concurrency.fair_share import HeldBytes

_OVERHEAD: Final = 256
"""Approximate memory overhead of an event, and of a stream, in bytes."""

_MOST_DIGITS: Final = 18


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
        if stream is None or not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
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
