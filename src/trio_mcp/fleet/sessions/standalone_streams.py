"""StandaloneStreams: the SSE streams that a client of a legacy session opens with GET, on any replica.

One replica at a time holds the session's standalone GET stream: the one that received the latest GET. Only that replica
sends change notifications, while its response is open. A change while no response is open is sent to the next GET: the
position in the change log is stored with the stream. Other lines are forwarded to the replica that holds the stream. If
there is none, they are stored in the event log for the next GET.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from http import HTTPStatus
from itertools import count
from typing import Final

import attrs
import trio

from ...classes import define
from ...concurrency.time_limits import growing_delay
from ...runtime.outbox import Outbox
from ...server.connection import ServerConnection
from ...server.subscriptions import ClientSubscriptions
from ...serving.callers import token_expiry
from ...serving.http.exchanges import FinishedStream, HttpRequest
from ...serving.http.responses import empty, invalid
from ...stores.shared import ChangeCursor
from ...transports.sse import STREAM_HEADERS, numbered_events, priming_event, retry_line
from ..change_replicator import EVERYTHING, notify_changes
from ..messenger import MessageRefused, ReplicaDead
from .event_log import STORAGE_TIMEOUT, ResumedStreams, StreamLog, new_holder, parse_cursor, replica_of
from .shared_state import SessionEnded, SessionServices, SharedSessionState, session_ended, to_milliseconds, unreachable
from .state import change_listener
from .streams import SSEResponse, StandaloneStream, respond

logger = logging.getLogger("trio_mcp")

LINES_MESSAGE: Final = "session.lines"
"""The kind of messages that forward lines for the standalone GET stream of a session."""
_FIRST_REPEAT: Final = 0.1
_LONGEST_REPEAT: Final = 2.0
_NOT_KEPT: Final = "events after this event id are no longer kept"
_UNKNOWN: Final = "no stream of this session has this event id, or its stream is no longer kept"


@define(eq=False)
class StandaloneStreams:
    """The SSE streams that the client of one MCP session opens with GET.

    These are the standalone GET stream, for messages that belong to no request, and resumed streams.

    ``outbox`` has the lines that belong to no request. ``log`` has the streams that answer requests, and ``resumed``
    those that the client has reconnected to on this replica.
    """

    _services: SessionServices
    _session_state: SharedSessionState
    _served: ServerConnection
    _outbox: Outbox
    _log: StreamLog
    _resumed: ResumedStreams
    standalone_log: StreamLog = attrs.field(init=False)
    """The log of the session's standalone GET stream, which is stored as long as the session."""
    _stream: StandaloneStream | None = attrs.field(default=None, init=False)
    """The standalone GET stream; `None` while another replica, or no replica, writes it."""
    _stream_lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """This lock is held while the standalone GET stream is taken over or written."""
    _sending: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _has_started: bool = attrs.field(default=False, init=False)
    _is_sending: bool = attrs.field(default=False, init=False)
    _notified_cursor: str = attrs.field(default="", init=False)
    """The position in the change log at which the response ended; empty once this position is stored."""
    _touched_at: float = attrs.field(factory=trio.current_time, init=False)
    _is_ending: bool = attrs.field(default=False, init=False)
    """True once new responses are refused."""

    def __attrs_post_init__(self) -> None:
        limits = self._services.running.limits
        keep, most = to_milliseconds(limits.session_timeout), max(limits.max_replay_bytes // 4, 1)
        self.standalone_log = self._log.standalone(most, keep)
        self._subscriptions.notifies_legacy = False
        self._outbox.call_writer(self._start_sending)

    @property
    def _subscriptions(self) -> ClientSubscriptions:
        return self._served.subscriptions

    # State

    @property
    def is_open(self) -> bool:
        """True while a response on this replica sends the session's standalone GET stream to the client."""
        return self._stream is not None and self._stream.is_open

    @property
    def is_elsewhere(self) -> bool:
        """True if another replica writes the session's standalone GET stream, according to the session state that was
        read last.

        The standalone GET stream is the SSE stream that a client opens with GET.
        """
        return replica_of(self._session_state.current.listener) not in ("", self._services.replica.id)

    @property
    def is_reached(self) -> bool:
        """True while this replica is sending the response to a client's GET."""
        return self.is_open or bool(self._resumed)

    @property
    def is_needed(self) -> bool:
        """True while messages for the client are waiting, or this replica is sending the response to a client's GET."""
        return self._is_sending or bool(self._outbox.size) or self.is_reached

    def check_listener(self, listener: str) -> None:
        """Stop writing the standalone GET stream if the session state names another writer for this stream.

        ``listener`` is the name of the current writer, as stored in the session state.
        """
        if self._stream is not None and self._stream.holder != listener:
            self._abandon_stream()

    def _abandon_stream(self) -> None:
        own, self._stream = self._stream, None
        if own is not None:
            own.close()

    def expire(self, now: float) -> None:
        """End the responses to clients whose access token has expired.

        This also extends the lifetime of the stored standalone GET stream.
        """
        self._resumed.expire(now)
        own = self._stream
        if own is None or own.pipe is None or not own.is_open:
            return
        if now >= own.pipe.until:
            own.close()
        elif now - self._touched_at >= self._services.running.limits.session_timeout / 3:
            self._touched_at = now
            self._services.start_soon(own.touch)

    def send_keep_alive(self) -> None:
        """Send a keep-alive comment on the standalone GET stream, unless something was sent since the last call."""
        if self._stream is not None and self._stream.pipe is not None:
            self._stream.pipe.send_keep_alive()

    def end_responses(self) -> None:
        """End all responses to GETs, including responses that begin later, because the process is shutting down."""
        self._is_ending = True
        if self._stream is not None:
            self._stream.close()
        self._resumed.close_all()

    def close(self) -> None:
        """End all responses to GETs and send nothing more, because the session has ended on this replica."""
        self._sending.cancel(reason="the session has ended in this process")
        self.end_responses()
        self._abandon_stream()

    # GET

    async def get(self, asked: HttpRequest) -> None:
        """Respond to a GET with the session's standalone GET stream.

        If the GET has a ``Last-Event-ID``, resume the SSE stream of that event instead.

        The response continues after the cursor, or after the last event that a response carried. An earlier response of
        the same stream ends, on whichever replica it is; an earlier response that resumes a stream only ends on this
        replica.
        """
        response, extra = asked.response, asked.extra
        try:
            with trio.move_on_after(STORAGE_TIMEOUT) as scope:
                await self._answer(asked)
            if scope.cancelled_caught:
                response.answer(unreachable(extra))
        except SessionEnded:
            response.answer(session_ended(extra))
        except OSError as error:
            logger.debug("the streams of a session could not be read: %s", error)
            response.answer(unreachable(extra))
        if self._is_ending:  # meanwhile
            self.end_responses()

    async def _answer(self, asked: HttpRequest) -> None:
        cursor = asked.head.headers.get("last-event-id")
        if cursor is None:
            await self._listen(asked, None)
            return
        response, extra, parsed = asked.response, asked.extra, parse_cursor(cursor)
        read, number = None, 0
        if parsed is not None:
            name, number = parsed
            is_own = name == self._session_state.current.standalone_stream
            read = await (self.standalone_log if is_own else self._log).read_after(name, number)
        if read is None or number > read.stream.last or number < read.stream.dropped:
            # Refuse the GET: if the stream just continued, the client would believe that it has missed no events.
            is_gone = read is not None and number < read.stream.dropped
            response.answer(invalid(HTTPStatus.BAD_REQUEST, _NOT_KEPT if is_gone else _UNKNOWN, extra))
        elif read.stream.name == self._session_state.current.standalone_stream:
            await self._listen(asked, number)
        elif not read.stream.is_finished:
            self._resumed.resume(asked, read, self._retry_line)
        elif read.lines:
            events = numbered_events(read.stream.name, read.first, read.lines)
            response.stream(HTTPStatus.OK, STREAM_HEADERS + extra, FinishedStream(events))
        else:  # see `HttpSession.get`
            response.answer(empty(HTTPStatus.NO_CONTENT, extra))

    @property
    def _retry_line(self) -> bytes:
        revision = self._served.state.revision
        polls = revision is not None and revision.polling
        return retry_line(round(self._services.retry_interval * 1000)) if polls else b""

    # The standalone GET stream

    async def _listen(self, asked: HttpRequest, after: int | None) -> None:
        """Respond to a GET with the standalone GET stream.

        The response contains the events after the number ``after`` or, if ``after`` is `None`, the events that no
        response has sent.
        """
        async with self._stream_lock:
            had_listener = bool(self._session_state.current.listener)
            own = await self._take_over()
            found = await own.unsent(after)
            if found is None:
                asked.response.answer(invalid(HTTPStatus.BAD_REQUEST, _NOT_KEPT, asked.extra))
                return
            events, is_gap = found
            first = self._retry_line
            if first and after is None:
                first += priming_event(own.sent_cursor)
            # From now on, send change notifications. `_changes` returns all earlier changes.
            self._subscriptions.notifies_legacy = True
            try:
                place, changed = await self._changes(
                    own.cursor or self._session_state.current.cursor, is_known=not had_listener
                )
                pipe = SSEResponse(self._outbox.high_water, token_expiry(asked.auth), self._stop_notifying)
                pipe.put(first + events)
                self._stream, self._notified_cursor = own, ""
                own.pipe = pipe
                respond(asked.response, asked.extra, pipe)
            finally:
                self._subscriptions.notifies_legacy = self.is_open
            if not await self._append(own, [], place):
                return
        self._start_sending()
        notify_changes(self._subscriptions, [EVERYTHING] if is_gap else changed)

    async def _take_over(self) -> StandaloneStream:
        """Make this replica the writer of the standalone GET stream.

        The former writer, possibly this replica itself, finds in the session state that it was replaced.
        """
        name, holder = self._session_state.current.standalone_stream, new_holder(self._services.replica)
        stream = await self.standalone_log.take_over(name, holder)
        await self._session_state.change(change_listener(holder))
        return StandaloneStream(self.standalone_log, name, holder, stream)

    def _stop_notifying(self) -> None:
        if self.is_open or not self._subscriptions.notifies_legacy:
            return
        self._subscriptions.notifies_legacy = False
        self._notified_cursor = self._services.changes.cursor
        self._outbox.nudge()

    async def _changes(self, cursor: str, *, is_known: bool) -> tuple[ChangeCursor, Collection[str]]:
        """Return the changes of tools, resources and prompts after the position ``cursor`` in the change log, and the
        position after these changes.

        If there is no cursor and ``is_known`` is true, nothing was missed.
        """
        told, log = self._services.changes, self._services.replica.changes
        unnoted = told.unrecorded
        if told.cursor and (cursor == told.cursor or (is_known and not cursor)):
            return told.cursor, unnoted
        changes = await log.read_since(cursor or None)
        is_lost = changes.everything or not (cursor or is_known)
        return changes.cursor, [EVERYTHING] if is_lost else {*changes.changed, *unnoted}

    # The following methods send messages that don't belong to a request of the client.

    def put_lines(self, lines: bytes) -> bool:
        """Send the JSON-RPC messages ``lines``, which another replica has forwarded, on the standalone GET stream.

        Returns false if another replica writes that stream.
        """
        if self._stream is None:
            return False
        self._outbox.put(lines)
        return True

    def _start_sending(self) -> None:
        if not self._has_started:
            self._has_started = True
            self._outbox.call_writer(None)
            self._services.start_soon(self._send)

    async def _send(self) -> None:
        outbox = self._outbox
        with self._sending:
            while True:
                lines = bytes(await outbox.take())
                place = ""
                # If the outbox is empty now, the client gets all changes up to the replica's cursor in the change log.
                if not outbox.size:
                    place = self._services.changes.cursor if self.is_open else self._notified_cursor
                    self._notified_cursor = ""
                self._is_sending = True
                try:
                    if lines or place:
                        await self._deliver(lines.splitlines(keepends=True), place)
                    if self._stream is not None and self._stream.pipe is not None:
                        await self._stream.pipe.wait_for_room()
                finally:
                    self._is_sending = False

    async def _deliver(self, lines: Sequence[bytes], cursor: str) -> None:
        for attempt in count(1):
            try:
                if await self._write(lines, cursor) or not lines or await self._forward(lines):
                    return
            except SessionEnded:
                return
            except OSError as error:
                logger.debug("could not send a message of a session yet: %s", error)
            await _pause(attempt)

    async def _write(self, lines: Sequence[bytes], cursor: str) -> bool:
        """Store the JSON-RPC messages ``lines`` on the standalone GET stream, and send them to the client.

        Returns false if another replica writes the stream.
        """
        async with self._stream_lock:
            return self._stream is not None and await self._append(self._stream, lines, cursor)

    async def _append(self, stream: StandaloneStream, lines: Sequence[bytes], cursor: str) -> bool:
        """Store the JSON-RPC messages ``lines`` in the standalone GET stream ``stream``, and send them to the client.

        Returns false if another replica now writes the standalone GET stream.
        """
        for attempt in count(1):
            if self._stream is not stream:
                break
            if await stream.write(lines, cursor):
                return True
            if not await self._session_state.read():
                raise SessionEnded
            # The event log names another writer. If the session state names this replica, take over the stream again.
            if self._stream is stream:
                name = self._session_state.current.standalone_stream
                stream.last = (await self.standalone_log.take_over(name, stream.holder)).last
            await _pause(attempt)
        return False

    async def _forward(self, lines: Sequence[bytes]) -> bool:
        """Forward the JSON-RPC messages ``lines`` to the replica that writes the standalone GET stream.

        Returns whether that replica received the lines.

        If there is none, take over the stream and return false.
        """
        listener = self._session_state.current.listener
        if self.is_elsewhere:
            try:
                await self._services.send(
                    replica_of(listener), LINES_MESSAGE, (self._session_state.id, b"".join(lines))
                )
            except (ReplicaDead, MessageRefused):
                if not await self._session_state.read():
                    raise SessionEnded from None
            else:
                return True
        async with self._stream_lock:
            if self._stream is None and self._session_state.current.listener == listener:
                self._stream = await self._take_over()
        return False


async def _pause(attempt: int) -> None:
    """Wait after the failed write attempt with the number ``attempt``, before the next attempt.

    The second attempt follows at once, because the session state was just read again.
    """
    await trio.sleep(growing_delay(attempt - 1, first=_FIRST_REPEAT, longest=_LONGEST_REPEAT) if attempt > 1 else 0)
