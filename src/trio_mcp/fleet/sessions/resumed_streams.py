"""The streams that clients ask for by GET, at any replica: `ResumedStreams` are those that a client has come back for,
and the `StandaloneStream` of a session has the lines that belong to no request."""

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
from ...serving.callers import token_expiry
from ...serving.http.exchanges import HttpRequest
from ...stores.decoding import decode_stored
from ...stores.shared import StoredEvents, StoredStream
from ...transports.sse import KEEP_ALIVE, STREAM_HEADERS, numbered_events
from ..messenger import MessageRefused, Messenger, ReplicaDead
from .event_log import STORAGE_TIMEOUT, StreamLog, replica_of, retry_while_unavailable
from .shared_state import SessionServices
from .streams import SSEResponse

logger = logging.getLogger("trio_mcp")

RESUMED_MESSAGE: Final = "session.resumed"
"""Kind of the letters that say that a client has come back for a stream, elsewhere."""


class ResumedStream:
    """A stream of ``log`` behind the events that were ``events``, written by any replica: see `ResponseBody`.
    ``signal`` tells of changes. The response begins with ``first``, and ends at ``until`` at the latest. The silence is
    ``interval`` seconds at most. ``on_closed`` is called at the end."""

    def __init__(
        self,
        log: StreamLog,
        messenger: Messenger,
        signal: ChangeSignal,
        events: StoredEvents,
        first: bytes,
        until: float,
        interval: float,
        on_closed: Callable[[ResumedStream], None],
    ) -> None:
        self.name = events.stream.name
        self.until = until
        self.signal = signal
        self._log = log
        self._messenger = messenger
        self._interval = interval
        self._on_closed = on_closed
        self._number = events.first - 1
        self._first = first
        self._is_over = False
        self._read_at = trio.current_time()
        self._waiting: bytes = self._encode_events(events)

    def _encode_events(self, events: StoredEvents) -> bytes:
        self._is_over = self._is_over or events.stream.is_finished
        self._number = events.first - 1 + len(events.lines)
        return numbered_events(self.name, events.first, events.lines)

    def close(self) -> None:
        """End the response: another one follows the stream, or its time is over. Idempotent."""
        self._is_over = True
        self._on_closed(self)
        self.signal.notify()

    async def next_chunk(self) -> bytes:
        """Wait for the next events, or a comment. See `ResponseBody.next_chunk`."""
        spoken = trio.current_time()
        while not (self._first or self._waiting or self._is_over):
            await self.signal.next_poll()
            if self._is_over:
                break
            try:
                read = await self._log.read_after(self.name, self._number)
                if read is None:
                    self._is_over = True
                else:
                    self._waiting = self._encode_events(read)
                    if not (self._waiting or self._is_over):
                        await self._finish_if_dead(read.stream)
                self._read_at = trio.current_time()
            except OSError:
                if trio.current_time() - self._read_at >= STORAGE_TIMEOUT:
                    self._is_over = True
            if not self._waiting and trio.current_time() - spoken >= self._interval:
                return KEEP_ALIVE
        if not (self._first or self._waiting):
            self._on_closed(self)
        events, self._first, self._waiting = self._first + self._waiting, b"", b""
        return events

    async def _finish_if_dead(self, stream: StoredStream) -> None:
        """End the stream where nobody else can."""
        if await self._messenger.is_dead(replica_of(stream.holder)):
            await self._log.finish_dead(stream)
            self.signal.notify()


class ResumedStreams:
    """The streams of the session ``session_id``, in ``log``, that clients have come back for to this replica.
    ``on_resumed`` is called with a stream that this replica writes, and with the replica that was asked for it."""

    def __init__(
        self, services: SessionServices, session_id: str, log: StreamLog, on_resumed: Callable[[str, str], None]
    ) -> None:
        self._services = services
        self._id = session_id
        self._log = log
        self._on_resumed = on_resumed
        self._streams: dict[str, ResumedStream] = {}

    def __bool__(self) -> bool:
        """True while a stream is followed here."""
        return bool(self._streams)

    def resume(self, asked: HttpRequest, events: StoredEvents, first: bytes) -> None:
        """Answer with ``first`` and the stream behind the events that were ``events``."""
        name, replica = events.stream.name, replica_of(events.stream.holder)
        before = self._streams.pop(name, None)
        if before is not None:
            before.close()
        here = self._services.replica.id
        if replica == here:
            self._on_resumed(name, here)
        else:
            self.notify_resumed(replica, name, here)
        signal = self._services.watch_stream(self._id, name)
        signal.notify()  # what came since the reading
        until, interval = token_expiry(asked.auth), self._services.running.limits.stream_interval / 2
        stream = ResumedStream(
            self._log, self._services.messenger, signal, events, first, until, interval, self._remove
        )
        self._streams[name] = stream
        asked.response.on_gone = stream.close
        asked.response.stream(HTTPStatus.OK, STREAM_HEADERS + asked.extra, stream)
        if asked.response.is_gone:
            stream.close()

    def _remove(self, stream: ResumedStream) -> None:
        self._services.unwatch_stream(self._id, stream.name, stream.signal)
        if self._streams.get(stream.name) is stream:
            del self._streams[stream.name]

    def close_stream(self, name: str) -> None:
        """End the response here that follows the stream ``name``, if any."""
        if (stream := self._streams.get(name)) is not None:
            stream.close()

    def expire(self, now: float) -> None:
        """End responses whose token has ended."""
        for stream in tuple(self._streams.values()):
            if now >= stream.until:
                stream.close()

    def close_all(self) -> None:
        """End all responses."""
        self.expire(math.inf)

    def notify_resumed(self, receiver: str, name: str, replica: str) -> None:
        """Tell the replica ``receiver`` that the client has come back for the stream ``name``, to ``replica``. The
        response that had the stream may be one whose client is gone unsaid."""
        self._services.start_soon(self._notify_resumed, receiver, (self._id, name, replica))

    async def _notify_resumed(self, receiver: str, content: tuple[str, str, str]) -> None:
        try:
            await self._services.send(receiver, RESUMED_MESSAGE, content)
        except (ReplicaDead, MessageRefused, OSError) as error:
            logger.debug("a response could not be ended: %s", error)


class _StreamPosition(msgspec.Struct, frozen=True):
    """The note beside the own stream of a session."""

    sent: int = 0
    """Number of the last event that a response took."""
    place: str = ""
    """Place in the log of changes, up to which lines were made of changes; empty where nobody knows."""


_decode_position: Final = msgspec.json.Decoder(_StreamPosition)


class StandaloneStream:
    """The session's own stream ``name``, as far as ``holder``, in this replica, has the stream."""

    def __init__(self, log: StreamLog, name: str, holder: str, stream: StoredStream) -> None:
        self.holder = holder
        self.pipe: SSEResponse | None = None
        """The way to the client; `None` while no response takes the lines."""
        self._log = log
        self._name = name
        self._last = stream.last
        note = (
            decode_stored("the note of a stream", _decode_position.decode, stream.note)
            if stream.note
            else _StreamPosition()
        )
        self._sent = note.sent
        self.cursor = note.place
        """See `_StreamPosition`."""

    @property
    def is_open(self) -> bool:
        """True while a response takes the lines."""
        return self.pipe is not None and self.pipe.is_open

    async def unsent(self, after: int | None) -> tuple[bytes, bool] | None:
        """Return the events that no response took, or all ``after`` a number, and whether some are missing; `None`
        where the client cannot go on from there."""
        number = self._sent if after is None else after
        if number >= self._last:
            return (b"", False) if number == self._last or after is None else None
        read = await self._log.read_after(self._name, number)
        if read is None:
            return (b"", True) if after is None else None
        is_gap = read.stream.dropped > number
        if is_gap and after is not None:
            return None
        return numbered_events(self._name, read.first, read.lines), is_gap

    @property
    def sent_cursor(self) -> str:
        """The id of the last event that a response took."""
        return f"{self._name}-{self._sent}"

    async def write(self, lines: Sequence[bytes], cursor: str) -> bool:
        """Keep and send lines, if any. Lines were made of all changes up to ``cursor``, empty where nobody knows.
        Return false, with nothing changed, where another one has the stream."""
        if not await self._append(lines, cursor):
            return False
        if self.pipe is not None:
            self.pipe.put(numbered_events(self._name, self._last + 1 - len(lines), lines))
        return True

    async def _append(self, lines: Sequence[bytes], cursor: str) -> bool:
        last = self._last + len(lines)
        sent, cursor = last if self.is_open else self._sent, cursor or self.cursor
        note = msgspec.json.encode(_StreamPosition(sent, cursor))
        append = partial(self._log.append, self._name, self.holder, self._last + 1, lines, note)
        if not await retry_while_unavailable(append, lambda _: self.close()):
            return False
        self._last, self._sent, self.cursor = last, sent, cursor
        return True

    def resume(self, stream: StoredStream) -> None:
        """Go on behind the lines that another one has written meanwhile."""
        self._last = stream.last

    def close(self) -> None:
        """End the response. Idempotent."""
        if self.pipe is not None:
            self.pipe.close()

    def touch(self) -> Awaitable[Any]:
        """Have the log last."""
        return self._log.touch(self._name)
