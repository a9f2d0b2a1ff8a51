"""ReplayLog keeps the events of one session for clients that come back (2025-11-25 transports, Resumability and
Redelivery)."""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from ...jsonrpc.values import value

__all__ = ["BadCursor", "Replay", "ReplayLog"]

_OVERHEAD: Final = 256
"""Bytes that an event, and a stream, takes beside its line, about."""

_MOST_DIGITS: Final = 18


class BadCursor(Exception):
    """A client came back with an event id that no stream of the session can go on from; the text says why. Another
    stream instead would let the client believe that nothing was missed."""


@value
class Replay:
    """The events of one stream behind a cursor, each with its id, oldest first. ``finished``: no others will follow."""

    stream: str
    events: list[tuple[str, bytes]]
    finished: bool


@attrs.define(eq=False)
class _Piece:
    """Events that came together, of one stream, and are kept."""

    lines: list[bytes]
    """Lines of the events, newest first."""


@attrs.define(eq=False)
class _Stream:
    name: str
    pieces: deque[_Piece] = attrs.Factory(deque[_Piece])
    count: int = 0
    """Number of the events that are kept. Their numbers in the stream are successive, up to ``last``."""
    size: int = 0
    last: int = 0
    """The number of the last event, kept or not; ``0`` before the first."""

    def event_id(self, number: int) -> str:
        return f"{self.name}-{number}"


class ReplayLog:
    """The events of the streams of one session, as many as fit into ``max_stream_bytes`` for each stream and
    ``max_bytes`` for all of them. The oldest go first.

    Event ids are ``STREAM-NUMBER``. The names of streams differ from session to session, so that an id of another
    session is unknown here.
    """

    def __init__(self, max_stream_bytes: float, max_bytes: float) -> None:
        self._max_stream = max_stream_bytes
        self._max = max_bytes
        self._session = secrets.token_hex(4)
        self._opened = 0
        self._streams: dict[str, _Stream] = {}
        self._finished: dict[str, float] = {}
        """Finished streams, in the order of finishing, with the time until which each is kept."""
        self._oldest_first: OrderedDict[_Piece, _Stream] = OrderedDict()
        self.size = 0
        """Bytes that all this takes, about."""

    def open(self) -> str:
        """Open a stream and return its name."""
        self._opened += 1
        stream = _Stream(f"{self._session}.{self._opened}")
        self._streams[stream.name] = stream
        self.size += _OVERHEAD
        self._shrink()
        return stream.name

    def cursor(self, name: str) -> str:
        """Return the id behind which the next event of a stream will stand: the id of its last event, or, before the
        first, one for a priming event."""
        stream = self._streams[name]
        return stream.event_id(stream.last)

    def extend(self, name: str, lines: Iterable[bytes]) -> Sequence[str]:
        """Keep the next lines of a stream that is not finished, and return the ids of the events."""
        stream = self._streams[name]
        piece = _Piece([*lines][::-1])
        count = len(piece.lines)
        if not count:
            return ()
        size = sum(map(len, piece.lines)) + count * _OVERHEAD
        first = stream.last + 1
        stream.last += count
        stream.count += count
        stream.pieces.append(piece)
        stream.size += size
        self.size += size
        self._oldest_first[piece] = stream
        while stream.size > self._max_stream:
            self._drop_oldest(stream)
        self._shrink()
        return [stream.event_id(number) for number in range(first, first + count)]

    def finish(self, name: str, keep_until: float) -> None:
        """Note that no event will follow, and keep the stream until `forget_finished` is called with that time or a
        later one."""
        self._finished[name] = keep_until
        self._shrink()

    def forget_finished(self, now: float) -> None:
        """Forget the finished streams whose time is over."""
        for name in [name for name, keep_until in self._finished.items() if keep_until <= now]:
            self._forget(name)

    def after(self, cursor: str) -> Replay:
        """Return the events behind ``cursor`` in the stream of ``cursor``. Raises `BadCursor`."""
        name, _, digits = cursor.rpartition("-")
        stream = self._streams.get(name)
        if stream is None or not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
            raise BadCursor("no stream of this session has this event id, or none has any more")
        number = int(digits)
        if number > stream.last or stream.event_id(number) != cursor:
            raise BadCursor("no stream of this session has this event id")
        dropped = stream.last - stream.count
        if number < dropped:
            raise BadCursor("events behind this event id are no longer kept")
        lines = [line for piece in stream.pieces for line in reversed(piece.lines)]
        behind = enumerate(lines[number - dropped :], number + 1)
        return Replay(name, [(stream.event_id(each), line) for each, line in behind], name in self._finished)

    def _shrink(self) -> None:
        """Drop the oldest until all that is kept fits: finished streams that have no events, and else events."""
        while self.size > self._max:
            finished = next(iter(self._finished), None)
            if finished is not None and not self._streams[finished].count:
                self._forget(finished)
            elif self._oldest_first:
                self._drop_oldest(next(iter(self._oldest_first.values())))
            else:
                return

    def _drop_oldest(self, stream: _Stream) -> None:
        piece = stream.pieces[0]
        size = len(piece.lines.pop()) + _OVERHEAD
        if not piece.lines:
            stream.pieces.popleft()
            del self._oldest_first[piece]
        stream.count -= 1
        stream.size -= size
        self.size -= size

    def _forget(self, name: str) -> None:
        del self._finished[name]
        stream = self._streams.pop(name)
        while stream.count:
            self._drop_oldest(stream)
        self.size -= _OVERHEAD
