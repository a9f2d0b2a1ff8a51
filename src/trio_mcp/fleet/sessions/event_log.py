"""StreamLog: one replica's access to the stored events of a legacy session, which clients can read again from any
replica.

`ResumedStreams` are the streams that a client has reconnected to on this replica.
"""

from __future__ import annotations

import errno
import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from itertools import count
from typing import Final, TypeVar, cast

import attrs
import trio

from ...classes import frozen
from ...concurrency.time_limits import growing_delay
from ...concurrency.wakeups import ChangeSignal
from ...jsonrpc.codec import decode_value, encode_value, frame_error
from ...jsonrpc.messages import RequestId, is_request_id
from ...protocol.errors import REPLICA_LOST
from ...serving.callers import token_expiry
from ...serving.http.exchanges import HttpRequest
from ...stores.record_codec import decode_stored
from ...stores.sealing import BadSeal, KeyRing
from ...stores.shared import EventLog, Replica, StoredEvents, StoredStream
from ...stores.task_store import UnreadableRecord
from ...transports.sse import KEEP_ALIVE, STREAM_HEADERS, numbered_events
from ..messenger import logged_failure
from .shared_state import SessionServices

T = TypeVar("T")

STORAGE_TIMEOUT: Final = 10.0
"""The number of seconds for which a response stays open while the event log is unavailable. Afterwards the client can
reconnect."""
LOST: Final = "the process that ran this call has ended; call again"
_FIRST_REPEAT: Final = 0.1
_LONGEST_REPEAT: Final = 1.0
_NAME_BYTES: Final = 6
_BEYOND: Final = 10**17
_MOST_DIGITS: Final = 17
RESUMED_MESSAGE: Final = "session.resumed"
"""The kind of messages that report that a client has reconnected to an SSE stream on another replica."""


def new_stream_name() -> str:
    """Return a name for a new SSE stream, unique across all sessions."""
    return secrets.token_hex(_NAME_BYTES)


def new_holder(replica: Replica) -> str:
    """Return a new holder name for ``replica``. Only the holder of an SSE stream may append events to it in the event
    log."""
    return f"{replica.id}:{secrets.token_hex(_NAME_BYTES)}"


def replica_of(holder: str) -> str:
    """Return the id of the replica for which `new_holder` has made the holder name ``holder``.

    Returns an empty string for an empty name.
    """
    return holder.partition(":")[0]


def parse_cursor(cursor: str) -> tuple[str, int] | None:
    """Parse ``cursor``, the id of an SSE event, into the stream's name and the event's number.

    Returns `None` if ``cursor`` isn't such an id.
    """
    name, _, digits = cursor.rpartition("-")
    if not (name and digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        return None
    number = int(digits)
    return (name, number) if str(number) == digits else None


def lost_line(request_id: bytes) -> bytes:
    """Return the last message of an SSE stream whose replica has ended: an error response to the request
    ``request_id``.

    ``request_id`` is JSON text. If it is an array of ids, the line has an error for each member of a batch. Raises
    `UnreadableRecord`.
    """
    ids = decode_stored("the id of a request", _ids, request_id)
    lines = [frame_error(each, REPLICA_LOST, LOST) for each in ids]
    return (b"[%b]\n" if request_id.startswith(b"[") else b"%b\n") % b",".join(lines)


def _ids(request_id: bytes) -> list[RequestId]:
    found = decode_value(request_id)
    ids = cast("list[object]", found if isinstance(found, list) else [found])
    if not all(map(is_request_id, ids)):
        raise ValueError("a request id must be a string or an integer")
    return cast("list[RequestId]", ids)


def _standalone_log_id(session_id: str) -> str:
    """Return the id of the event log for a session's standalone GET stream.

    The log of all other streams has the session's id.
    """
    return f"{session_id} own"


async def forget_events(events: EventLog, session_id: str) -> None:
    """Delete the stored events of a session that has ended. If the storage is unavailable, the events expire later."""
    with logged_failure("could not delete the events of a session"):
        await events.delete(session_id)
        await events.delete(_standalone_log_id(session_id))


async def retry_while_unavailable(call: Callable[[], Awaitable[T]], on_timeout: Callable[[OSError], None]) -> T:
    """Call ``call`` until it succeeds, because the shared storage may be unavailable. Return the result.

    If it still fails after `STORAGE_TIMEOUT` seconds, ``on_timeout`` is called once, and may raise.
    """
    due: float | None = trio.current_time() + STORAGE_TIMEOUT
    for attempt in count(1):
        try:
            return await call()
        except OSError as error:
            if due is not None and trio.current_time() >= due:
                due = None
                on_timeout(error)
        await trio.sleep(growing_delay(attempt, first=_FIRST_REPEAT, longest=_LONGEST_REPEAT))
    raise AssertionError("unreachable")


@frozen
class StreamLog:
    """Reads and writes the stored SSE events of one MCP session. ``log_id`` is the key of these events in the shared
    storage.

    At most ``limit`` bytes of events are stored. They are kept for ``retention_ms`` milliseconds after the last use of
    the log.
    """

    events: EventLog
    log_id: str
    limit: int
    retention_ms: int
    keys: KeyRing | None = None
    """The keys that encrypt events, if the server has secrets. An encrypted event can only be decrypted for its own
    stream and owner."""
    owner: str = ""
    """The principal that owns the session, in the form of `principal_text`."""

    def standalone(self, limit: int, retention_ms: int) -> StreamLog:
        """Return the log of the session's standalone GET stream. This log is the log of all other streams."""
        return attrs.evolve(self, log_id=_standalone_log_id(self.log_id), limit=limit, retention_ms=retention_ms)

    def open(self, name: str, holder: str, request_id: bytes) -> Awaitable[None]:
        """Create the SSE stream ``name`` in the session's event log. See `EventLog.open`."""
        return self.events.open(self.log_id, name, holder=holder, request_id=request_id, retention_ms=self.retention_ms)

    def take_over(self, name: str, holder: str) -> Awaitable[StoredStream]:
        """Make ``holder`` the only writer that may append events to the SSE stream. See `EventLog.take_over`."""
        return self.events.take_over(self.log_id, name, holder=holder, retention_ms=self.retention_ms)

    async def append(
        self,
        name: str,
        holder: str,
        first: int,
        lines: Sequence[bytes],
        note: bytes | None = None,
        *,
        finish: bool = False,
        more: int = 0,
    ) -> bool:
        """Append the JSON-RPC messages ``lines`` to the SSE stream, as events.

        Returns false if ``holder`` may not append, or if the log has lost the events before the number ``first``. See
        `EventLog.append`.

        ``more`` raises the byte limit for this call.
        """
        lines = self._seal(name, lines)
        try:
            return await self.events.append(
                self.log_id,
                name,
                holder=holder,
                first=first,
                lines=lines,
                limit=self.limit + more,
                retention_ms=self.retention_ms,
                note=note,
                finish=finish,
            )
        except ValueError:
            return False

    async def read_after(self, name: str, number: int) -> StoredEvents | None:
        """Return the stored events of the SSE stream after the event ``number``. See `EventLog.read_after`.

        Raises `UnreadableRecord`, an `OSError`, for events that weren't encrypted with one of the keys.
        """
        found = await self.events.read_after(self.log_id, name, number, retention_ms=self.retention_ms)
        if found is None or self.keys is None:
            return found
        about = self._about(name)
        try:
            return attrs.evolve(found, lines=[self.keys.open(line, about) for line in found.lines])
        except BadSeal:
            raise UnreadableRecord(
                errno.EIO, "a stored event cannot be decrypted: it was modified, or encrypted with another secret"
            ) from None

    async def touch(self, name: str) -> None:
        """Extend the lifetime of the session's event log to `retention_ms` milliseconds from now.

        If the storage is unavailable, only log the error.
        """
        with logged_failure("could not extend the lifetime of a session's events"):
            await self.read_after(name, _BEYOND)

    def finish_dead(self, stream: StoredStream) -> Awaitable[bool]:
        """Finish an SSE stream whose writer was a replica that has ended. See `EventLog.finish_dead`."""
        return self.events.finish_dead(
            self.log_id,
            stream.name,
            dead_holder=stream.holder,
            line=self._seal(stream.name, [lost_line(stream.request_id)])[0],
            limit=self.limit,
            retention_ms=self.retention_ms,
        )

    def _about(self, name: str) -> bytes:
        return encode_value([self.log_id, name, self.owner])

    def _seal(self, name: str, lines: Sequence[bytes]) -> Sequence[bytes]:
        if self.keys is None:
            return lines
        about = self._about(name)
        return [self.keys.seal(line, about) for line in lines]


class ResumedStream:
    """The body of an HTTP response that continues an SSE stream after a client has reconnected. See `ResponseBody`.

    The events may come from any replica.

    The body begins with ``first`` and ``events``, and continues with later events. ``signal`` reports changes of the
    stream. The response ends at ``until`` at the latest, and ``on_closed`` is called at its end.
    """

    def __init__(
        self,
        log: StreamLog,
        services: SessionServices,
        signal: ChangeSignal,
        events: StoredEvents,
        first: bytes,
        until: float,
        on_closed: Callable[[ResumedStream], None],
    ) -> None:
        self.name = events.stream.name
        self.until = until
        self.signal = signal
        self._log = log
        self._services = services
        self._on_closed = on_closed
        self._is_over = False
        self._read_at = trio.current_time()
        self._waiting = first + self._encode_events(events)

    def _encode_events(self, events: StoredEvents) -> bytes:
        self._is_over = self._is_over or events.stream.is_finished
        self._number = events.first - 1 + len(events.lines)
        return numbered_events(self.name, events.first, events.lines)

    def close(self) -> None:
        """End the response, for example because another response now sends the SSE stream. Idempotent."""
        self._is_over = True
        self._on_closed(self)
        self.signal.notify()

    async def next_chunk(self) -> bytes:
        """Wait for the next events of the SSE stream, and return them.

        If no event comes for a while, return a keep-alive comment.

        See `ResponseBody.next_chunk`.
        """
        keep_alive_at = trio.current_time() + self._services.running.limits.stream_interval / 2
        while not (self._waiting or self._is_over):
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
            if not self._waiting and trio.current_time() >= keep_alive_at:
                return KEEP_ALIVE
        if not self._waiting:
            self._on_closed(self)
        events, self._waiting = self._waiting, b""
        return events

    async def _finish_if_dead(self, stream: StoredStream) -> None:
        """If the replica that writes the SSE stream is dead, finish the stream with an error response to its
        request."""
        if await self._services.messenger.is_dead(replica_of(stream.holder)):
            await self._log.finish_dead(stream)
            self.signal.notify()


class ResumedStreams:
    """The responses on this replica that continue SSE streams in ``log`` for clients that have reconnected.

    If this replica also writes the stream, ``on_resumed`` is called with the stream's name and the id of this replica.
    """

    def __init__(self, services: SessionServices, log: StreamLog, on_resumed: Callable[[str, str], None]) -> None:
        self._services = services
        self._id = log.log_id
        self._log = log
        self._on_resumed = on_resumed
        self._streams: dict[str, ResumedStream] = {}

    def __bool__(self) -> bool:
        """True while a response on this replica continues an SSE stream after a client has reconnected."""
        return bool(self._streams)

    def resume(self, asked: HttpRequest, events: StoredEvents, first: bytes) -> None:
        """Respond to a GET that resumes an SSE stream.

        The response contains ``first``, then the stored ``events``, then all later events of the stream.
        """
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
        signal.notify()  # read the log once more, because events may have been appended since the last read
        until = token_expiry(asked.auth)
        stream = ResumedStream(self._log, self._services, signal, events, first, until, self._remove)
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
        """End the response on this replica that continues the SSE stream ``name``, if there is one."""
        if (stream := self._streams.get(name)) is not None:
            stream.close()

    def expire(self, now: float) -> None:
        """End the responses that continue an SSE stream for a client whose access token has expired."""
        for stream in tuple(self._streams.values()):
            if now >= stream.until:
                stream.close()

    def close_all(self) -> None:
        """End all HTTP responses on this replica in which clients have resumed an SSE stream."""
        self.expire(math.inf)

    def notify_resumed(self, receiver: str, name: str, replica: str) -> None:
        """Request that the replica ``receiver`` ends its response for the SSE stream ``name``. The replica ``replica``
        sends this stream now.

        The client of an earlier response may have disconnected unnoticed, so that response has to be ended.
        """
        self._services.start_soon(self._notify_resumed, receiver, (self._id, name, replica))

    async def _notify_resumed(self, receiver: str, content: tuple[str, str, str]) -> None:
        with logged_failure("a response could not be ended"):
            await self._services.send(receiver, RESUMED_MESSAGE, content)
