"""The streams that clients ask for by GET, at any replica: `FollowedStreams` are those that a client has come back for,
and the `OwnStream` of a session has the lines that belong to no request."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
import trio

from ...concurrency.wakeups import ChangeSignal
from ...stores.decoding import decode_stored
from ...stores.letters import LetterRefused, Letters, ReplicaDead
from ...stores.shared import StoredEvents, StoredStream
from ...transports.sse import KEEP_ALIVE, STREAM_HEADERS, numbered_events
from ..callers import end_of_token
from .exchanges import HttpRequest
from .shared_facts import SessionHost
from .shared_log import PATIENCE, StreamLog, insist, replica_of
from .shared_streams import EventPipe

logger = logging.getLogger("trio_mcp")

RESUMED_LETTER: Final = "session.resumed"
"""Kind of the letters that say that a client has come back for a stream, elsewhere."""
_LOOK: Final = 1.0
"""Seconds between two looks at a stream that another replica writes, where no hint comes before."""


class FollowedStream:
    """A stream of ``log`` behind the events that were ``read``, written by any replica: see `Source`. ``signal``
    tells of changes. The response begins with ``first``, and ends at ``until`` at the latest. The silence is
    ``interval`` seconds at most. ``ended`` is called at the end."""

    def __init__(
        self,
        log: StreamLog,
        letters: Letters,
        signal: ChangeSignal,
        read: StoredEvents,
        first: bytes,
        until: float,
        interval: float,
        ended: Callable[[FollowedStream], None],
    ) -> None:
        self.name = read.stream.name
        self.until = until
        self.signal = signal
        self._log = log
        self._letters = letters
        self._interval = interval
        self._ended = ended
        self._number = read.first - 1
        self._first = first
        self._is_over = False
        self._read_at = trio.current_time()
        self._waiting: bytes = self._read(read)

    def _read(self, read: StoredEvents) -> bytes:
        self._is_over = self._is_over or read.stream.is_finished
        self._number = read.first - 1 + len(read.lines)
        return numbered_events(self.name, read.first, read.lines)

    def end(self) -> None:
        """End the response: another one follows the stream, or its time is over. Idempotent."""
        self._is_over = True
        self._ended(self)
        self.signal.notice()

    async def take(self) -> bytes:
        """Wait for the next events, or a comment. See `Source.take`."""
        spoken = trio.current_time()
        while not (self._first or self._waiting or self._is_over):
            await self.signal.next_look()
            if self._is_over:
                break
            try:
                read = await self._log.after(self.name, self._number)
                if read is None:
                    self._is_over = True
                else:
                    self._waiting = self._read(read)
                    if not (self._waiting or self._is_over):
                        await self._look_after(read.stream)
                self._read_at = trio.current_time()
            except OSError:
                if trio.current_time() - self._read_at >= PATIENCE:
                    self._is_over = True
            if not self._waiting and trio.current_time() - spoken >= self._interval:
                return KEEP_ALIVE
        if not (self._first or self._waiting):
            self._ended(self)
        events, self._first, self._waiting = self._first + self._waiting, b"", b""
        return events

    async def _look_after(self, stream: StoredStream) -> None:
        """End the stream where nobody else can."""
        if await self._letters.is_dead(replica_of(stream.holder)):
            await self._log.finish_dead(stream)
            self.signal.notice()


def new_signal() -> ChangeSignal:
    """Return the signal for one who follows a stream."""
    return ChangeSignal(_LOOK)


class FollowedStreams:
    """The streams of the session ``session_id``, in ``log``, that clients have come back for to this replica.
    ``resumed`` is called with a stream that this replica writes, and with the replica that was asked for it."""

    def __init__(self, host: SessionHost, session_id: str, log: StreamLog, resumed: Callable[[str, str], None]) -> None:
        self._host = host
        self._id = session_id
        self._log = log
        self._resumed = resumed
        self._streams: dict[str, FollowedStream] = {}

    def __bool__(self) -> bool:
        """True while a stream is followed here."""
        return bool(self._streams)

    def follow(self, asked: HttpRequest, read: StoredEvents, first: bytes) -> None:
        """Answer with ``first`` and the stream behind the events that were ``read``."""
        name, replica = read.stream.name, replica_of(read.stream.holder)
        before = self._streams.pop(name, None)
        if before is not None:
            before.end()
        here = self._host.replica.id
        if replica == here:
            self._resumed(name, here)
        else:
            self.tell_resumed(replica, name, here)
        signal = self._host.follow(self._id, name)
        signal.notice()  # what came since the reading
        until, interval = end_of_token(asked.auth), self._host.running.limits.stream_interval / 2
        stream = FollowedStream(self._log, self._host.letters, signal, read, first, until, interval, self._forget)
        self._streams[name] = stream
        asked.response.on_gone = stream.end
        asked.response.stream(HTTPStatus.OK, STREAM_HEADERS + asked.extra, stream)
        if asked.response.is_gone:
            stream.end()

    def _forget(self, stream: FollowedStream) -> None:
        self._host.unfollow(self._id, stream.name, stream.signal)
        if self._streams.get(stream.name) is stream:
            del self._streams[stream.name]

    def leave(self, name: str) -> None:
        """End the response here that follows the stream ``name``, if any."""
        if (stream := self._streams.get(name)) is not None:
            stream.end()

    def expire(self, now: float) -> None:
        """End responses whose token has ended."""
        for stream in tuple(self._streams.values()):
            if now >= stream.until:
                stream.end()

    def end(self) -> None:
        """End all responses."""
        self.expire(math.inf)

    def tell_resumed(self, told: str, name: str, replica: str) -> None:
        """Tell the replica ``told`` that the client has come back for the stream ``name``, to ``replica``. The response
        that had the stream may be one whose client is gone unsaid."""
        self._host.start(self._tell_resumed, told, (self._id, name, replica))

    async def _tell_resumed(self, told: str, content: tuple[str, str, str]) -> None:
        try:
            await self._host.send(told, RESUMED_LETTER, content)
        except (ReplicaDead, LetterRefused, OSError) as error:
            logger.debug("a response could not be ended: %s", error)


class _Note(msgspec.Struct, frozen=True):
    """The note beside the own stream of a session."""

    sent: int = 0
    """Number of the last event that a response took."""
    place: str = ""
    """Place in the log of changes, up to which lines were made of changes; empty where nobody knows."""


_decode_note: Final = msgspec.json.Decoder(_Note)


class OwnStream:
    """The session's own stream ``name``, as far as ``holder``, in this replica, has the stream."""

    def __init__(self, log: StreamLog, name: str, holder: str, stream: StoredStream) -> None:
        self.holder = holder
        self.pipe: EventPipe | None = None
        """The way to the client; `None` while no response takes the lines."""
        self._log = log
        self._name = name
        self._last = stream.last
        note = decode_stored("the note of a stream", _decode_note.decode, stream.note) if stream.note else _Note()
        self._sent = note.sent
        self.place = note.place
        """See `_Note`."""

    @property
    def is_open(self) -> bool:
        """True while a response takes the lines."""
        return self.pipe is not None and self.pipe.is_open

    async def unsent(self, behind: int | None) -> tuple[bytes, bool] | None:
        """Return the events that no response took, or all ``behind`` a number, and whether some are missing; `None`
        where the client cannot go on from there."""
        number = self._sent if behind is None else behind
        if number >= self._last:
            return (b"", False) if number == self._last or behind is None else None
        read = await self._log.after(self._name, number)
        if read is None:
            return (b"", True) if behind is None else None
        is_gap = read.stream.dropped > number
        if is_gap and behind is not None:
            return None
        return numbered_events(self._name, read.first, read.lines), is_gap

    @property
    def sent_cursor(self) -> str:
        """The id of the last event that a response took."""
        return f"{self._name}-{self._sent}"

    async def write(self, lines: Sequence[bytes], place: str) -> bool:
        """Keep and send lines, if any. Lines were made of all changes up to ``place``, empty where nobody knows.
        Return false, with nothing changed, where another one has the stream."""
        if not await self._append(lines, place):
            return False
        if self.pipe is not None:
            self.pipe.put(numbered_events(self._name, self._last + 1 - len(lines), lines))
        return True

    async def _append(self, lines: Sequence[bytes], place: str) -> bool:
        last = self._last + len(lines)
        sent, place = last if self.is_open else self._sent, place or self.place
        note = msgspec.json.encode(_Note(sent, place))
        append = partial(self._log.append, self._name, self.holder, self._last + 1, lines, note)
        if not await insist(append, lambda _: self.end()):
            return False
        self._last, self._sent, self.place = last, sent, place
        return True

    def resume(self, stream: StoredStream) -> None:
        """Go on behind the lines that another one has written meanwhile."""
        self._last = stream.last

    def end(self) -> None:
        """End the response. Idempotent."""
        if self.pipe is not None:
            self.pipe.end()

    def touch(self) -> Awaitable[Any]:
        """Have the log last."""
        return self._log.touch(self._name)
