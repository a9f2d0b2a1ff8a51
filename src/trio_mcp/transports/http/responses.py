"""ResponseWriter: writes the HTTP responses to one client, one after another, through the phases of its connection.

A task that has an answer writes as much of it as the operating system accepts without waiting. A second task writes the
rest, and streams; it exists only as long as that takes. Status line, Date, length and chunks are written without a
library.

The life of an HTTP connection, as a table of phases and steps:

========== ========== ========== ========== ========== ========== ========== ========== ========== ========== ==========
phase      RECEIVE    ASK        AWAIT      SERVE      REFUSE     GO_ON      DROP       LINGER     CLOSE      END
========== ========== ========== ========== ========== ========== ========== ========== ========== ========== ==========
NEW        FIRST      ASKED      BODY       SERVED     REFUSED                                                OVER
FIRST                 ASKED      BODY       SERVED     REFUSED                                                OVER
IDLE       HEAD       ASKED      BODY       SERVED     REFUSED                                                OVER
HEAD                  ASKED      BODY       SERVED     REFUSED                                                OVER
ASKED                            BODY       SERVED     REFUSED                                                OVER
BODY                                        SERVED     REFUSED                                                OVER
SERVED                                                            IDLE                             CLOSING    OVER
REFUSED                                                                      DROPPING   LINGERING  CLOSING    OVER
DROPPING                                                                                           CLOSING    OVER
LINGERING                                                                                                     OVER
CLOSING                                                                                            CLOSING    OVER
OVER                                                                                                          OVER
========== ========== ========== ========== ========== ========== ========== ========== ========== ========== ==========

An empty cell is a step that cannot be taken.
"""

from __future__ import annotations

import contextvars
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from enum import IntEnum
from http import HTTPStatus
from typing import Any, Final

import trio

from ..streams import drop_tracebacks, nowait_writer, unacknowledged
from .application import Answer, RequestHead, ResponseBody, ResponseHandle, do_nothing

_WRITE: Final = 64 * 1024


class OutgoingBytes:
    """A buffer for the bytes that are sent on ``stream``. Most bytes are written at once, without waiting.

    Call `write_all` if `put` couldn't write everything at once, or after `put_stream`.
    """

    __slots__ = ("_chunked", "_pending", "_sending", "_since", "_source", "_stream", "_waiting", "_write_nowait")

    def __init__(self, stream: trio.abc.SendStream) -> None:
        self._stream = stream
        self._write_nowait = nowait_writer(stream)
        self._waiting: tuple[bytes | memoryview, ...] = ()
        """Bytes that have not been written yet."""
        self._source: ResponseBody | None = None
        """The source of the bytes that follow the waiting ones."""
        self._chunked = False
        self._sending = False
        """Whether bytes wait until the client accepts them."""
        self._since: float | None = None
        """The time of the first call of `stalled` since the client last accepted bytes."""
        self._pending: _Pending | None = None
        """The unacknowledged bytes of a stream. `None` for complete responses, because a client confirms a response by
        its next request, or by disconnecting."""

    @property
    def is_waiting(self) -> bool:
        """Whether `write_all` still has bytes to write."""
        return bool(self._waiting) or self._sending or self._source is not None

    @property
    def is_streaming(self) -> bool:
        """Whether a streamed response body is being written."""
        return self._source is not None

    @trio.lowlevel.enable_ki_protection  # KeyboardInterrupt must not leave a response half written
    def put(self, data: bytes, body: bytes = b"") -> bool:
        """Write as much of ``data`` as possible without waiting. Return true if nothing is left to write: all of
        ``data`` was written, and the response body ``body`` is empty.

        Only `write_all` writes ``body``, because copying a long body would take time.
        """
        if self._waiting or self._sending or self._source is not None:
            self._waiting += (data, body)
            return False
        count = self._write_nowait(data)
        if count == len(data) and not body:
            return True
        self._waiting = (memoryview(data)[count:], body)
        return False

    def put_stream(self, head: bytes, source: ResponseBody, *, chunked: bool) -> None:
        """Write ``head``, the head of a streamed response. Then `write_all` writes the chunks of ``source``, the
        body."""
        self.put(head)
        self._source = source
        self._chunked = chunked
        self._pending = _Pending(self._stream)

    def stalled(self, now: float) -> float:
        """Return for how many seconds the client has accepted none of the bytes that wait to be sent. ``now`` is the
        current time.

        The time starts at the first call that finds bytes waiting. In a stream, bytes wait until the client's operating
        system acknowledges them: keep-alive comments are too short to fill the buffers of a vanished client's
        connection.
        """
        if not self._sending:
            return 0 if self._pending is None else self._pending.stalled(now)
        if self._since is None:
            self._since = now
        return now - self._since

    async def write_all(self) -> None:
        """Write all waiting bytes, and then the chunks of the streamed body until it ends.

        Call this from one task at a time.
        """
        await self._write_waiting()
        source = self._source
        if source is not None:
            while data := await source.next_chunk():
                await (self._send_chunk(data) if self._chunked else self._send(data))
                del data  # drop the reference, or the chunk would stay in memory until the next chunk
            if self._chunked:
                await self._send(LAST_CHUNK)
            self._source = self._pending = None
        await self._write_waiting()

    async def _write_waiting(self) -> None:
        while self._waiting:
            data, *rest = self._waiting
            self._waiting = tuple(rest)
            await self._send(data)

    async def _send_chunk(self, data: bytes | bytearray) -> None:
        if len(data) <= _WRITE:
            await self._send(chunk(data))
            return
        await self._send(b"%x\r\n" % len(data))  # use three writes, because joining the parts would copy a long chunk
        await self._send(data)
        await self._send(b"\r\n")

    async def _send(self, data: bytes | bytearray | memoryview) -> None:
        self._sending = True
        if self._pending is not None:
            self._pending.added += len(data)
        try:
            for start in range(0, len(data), _WRITE):
                self._since = None
                await self._stream.send_all(memoryview(data)[start : start + _WRITE])
        finally:
            self._sending = False


class _Pending:
    """Counts the bytes of a stream that were sent, but that the client's operating system hasn't acknowledged."""

    __slots__ = ("_count", "_since", "_stream", "added")

    def __init__(self, stream: trio.abc.SendStream) -> None:
        self._stream = stream
        self._count = 0
        self._since: float | None = None
        """The time of the first call of `stalled` since bytes were acknowledged."""
        self.added = 0
        """Bytes that were written since the last call of `stalled`."""

    def stalled(self, now: float) -> float:
        """Return for how many seconds the client's operating system has acknowledged no bytes. ``now`` is the current
        time.

        The time starts at the first call that finds unacknowledged bytes.
        """
        most = self._count + self.added
        if not most:
            return 0
        self.added, self._count = 0, unacknowledged(self._stream)
        if not self._count:
            self._since = None
            return 0
        if self._since is None or self._count < most:
            self._since = now
        return now - self._since


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
_CLOSE: Final = b"Connection: close\r\n"


_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date(second: float) -> str:
    """Format a time for HTTP headers (RFC 9110 section 5.6.7).

    `email.utils` isn't used, because it imports a dozen modules. `time.strftime` isn't used, because it depends on the
    locale.
    """
    year, month, day, hour, minute, at_second, weekday, *_ = time.gmtime(second)
    return f"{_DAYS[weekday]}, {day:02} {_MONTHS[month - 1]} {year:04} {hour:02}:{minute:02}:{at_second:02} GMT"


class _ResponseHeads:
    """Caches the status line and Date header of responses for one second. The key is the status."""

    def __init__(self) -> None:
        self._second = 0
        self._lines: dict[int, bytes] = {}

    def of(self, status: int) -> bytes:
        """Return the first two lines of a response with the HTTP status ``status``: the status line and the Date
        header. They are the same for all such responses within one second."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._lines.clear()
        lines = self._lines.get(status)
        if lines is None:
            try:
                phrase = HTTPStatus(status).phrase
            except ValueError:  # unknown status, whose phrase may be empty: RFC 9112 section 4
                phrase = ""
            date = http_date(second)  # RFC 9110 section 6.6.1
            lines = self._lines[status] = f"HTTP/1.1 {status} {phrase}\r\nDate: {date}\r\n".encode("ascii")
        return lines


_response_heads = _ResponseHeads().of


def answer_bytes(answer: Answer, *, close: bool, has_body: bool) -> tuple[bytes, bytes]:
    """Return the bytes of the HTTP response ``answer`` in two parts. The second part is the body if it is long,
    otherwise empty.

    Without ``has_body``, as for HEAD, the headers contain the body's length, but the body isn't sent.
    """
    body, apart = answer.body, b""
    # RFC 9110: a 204 has no Content-Length (section 8.6), and a 304 has no body (section 15.4.5).
    length = b"" if answer.status in (204, 304) else b"Content-Length: %d\r\n" % len(body)
    if not has_body or not length:
        body = b""
    elif len(body) > _WRITE:
        body, apart = b"", body
    whole = b"".join((_response_heads(answer.status), answer.headers, length, _CLOSE if close else b"", b"\r\n", body))
    return whole, apart


def stream_head(status: int, headers: bytes, *, chunked: bool, close: bool) -> bytes:
    """Encode the status line and the headers of a streamed response.

    The body follows in chunks. For HTTP/1.0, it continues until the connection is closed.
    """
    framing = b"Transfer-Encoding: chunked\r\n" if chunked else b""
    return b"".join((_response_heads(status), headers, framing, _CLOSE if close else b"", b"\r\n"))


def chunk(data: bytes | bytearray) -> bytes:
    """Encode ``data``, which must not be empty, as an HTTP chunk (RFC 9112 section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class HttpResponse(ResponseHandle):
    """The `ResponseHandle` for one request on an HTTP connection."""

    __slots__ = ("begun", "caller", "connection", "head")

    def __init__(self, connection: ResponseWriter, head: RequestHead | None, caller: object | None = None) -> None:
        self.client = connection.client
        self.is_gone = False
        self.on_gone = do_nothing
        self.connection = connection
        self.head = head
        self.caller = caller
        self.begun = False

    def answer(self, answer: Answer, *, close: bool = False) -> None:
        if not self.begun and not self.is_gone:
            self.begun = True
            self.connection.respond(self, answer, close=close)

    def finish(self) -> Callable[[], None]:
        """Mark the response as complete. Return the ``on_gone`` callback, which was to be called if the client
        disconnected."""
        self.is_gone = True
        on_gone, self.on_gone = self.on_gone, do_nothing
        return on_gone

    def stream(self, status: int, headers: bytes, source: ResponseBody) -> None:
        if not self.begun and not self.is_gone:
            self.begun = True
            self.connection.respond_with(self, status, headers, source)


class ConnectionPhase(IntEnum):
    """The phases of an HTTP connection. Each connection is always in one of them."""

    NEW = 0
    """The client hasn't sent anything."""
    FIRST = 1
    """A part of the first head has arrived."""
    IDLE = 2
    """The connection is between requests."""
    HEAD = 3
    """A part of a head has arrived, and it isn't the connection's first head."""
    ASKED = 4
    """A head has arrived, and the application is deciding whether to admit its caller."""
    BODY = 5
    """The caller is admitted, and the body hasn't arrived completely."""
    SERVED = 6
    """The application is serving the request, or the response to a completely received request is being written."""
    REFUSED = 7
    """A request was refused before all of it was read, and the refusal is being written."""
    DROPPING = 8
    """A request was refused because of its head, and the refusal is written. The client may still send the body and
    read the refusal."""
    LINGERING = 9
    """A refusal is written. The client may still send bytes, and read the refusal."""
    CLOSING = 10
    """The last response is written. No further request is read, and the client may still read the response."""
    OVER = 11
    """The connection has ended, or has become a WebSocket."""


class ConnectionStep(IntEnum):
    """The events that move an HTTP connection from one phase to the next."""

    RECEIVE = 0
    """A part of a head has arrived."""
    ASK = 1
    """A head has arrived, and the application will decide on it later."""
    AWAIT = 2
    """The caller was admitted before the whole body has arrived."""
    SERVE = 3
    """The application gets a request that has arrived completely, or refuses this request."""
    REFUSE = 4
    """The request is refused before it is read to its end."""
    GO_ON = 5
    """The response is written, and the client may send another request."""
    DROP = 6
    """The refusal is written before the rest of the body has arrived. Most clients send the body before they read."""
    LINGER = 7
    """The refusal is written, and it's unknown where the request ends."""
    CLOSE = 8
    """The last response is written, the client has finished sending but still reads, or a refused body has arrived
    completely."""
    END = 9
    """The connection is closed, or becomes a WebSocket."""


class IllegalConnectionStep(RuntimeError):
    """Raised for a step that isn't allowed in the current phase of an HTTP connection. This shows a bug in this
    package."""


_P: Final = ConnectionPhase
_UNREAD: Final = _P.ASKED, _P.BODY, _P.SERVED, _P.REFUSED, None, None, None, None, _P.OVER
_AFTER: Final[tuple[tuple[ConnectionPhase | None, ...], ...]] = (
    (_P.FIRST, *_UNREAD),
    (None, *_UNREAD),
    (_P.HEAD, *_UNREAD),
    (None, *_UNREAD),
    (None, None, *_UNREAD[1:]),
    (None, None, None, *_UNREAD[2:]),
    (None, None, None, None, None, _P.IDLE, None, None, _P.CLOSING, _P.OVER),
    (None, None, None, None, None, None, _P.DROPPING, _P.LINGERING, _P.CLOSING, _P.OVER),
    (None, None, None, None, None, None, None, None, _P.CLOSING, _P.OVER),
    (None, None, None, None, None, None, None, None, None, _P.OVER),
    (None, None, None, None, None, None, None, None, _P.CLOSING, _P.OVER),
    (None, None, None, None, None, None, None, None, None, _P.OVER),
)
"""The phase after each step, keyed by the phase before the step."""


class ConnectionLife:
    """The current phase of an HTTP connection. Only `enter` changes it."""

    __slots__ = ("phase", "since")

    def __init__(self) -> None:
        self.phase = _P.NEW
        self.since: float | None = None
        """The time of the first clock check in the current phase."""

    def enter(self, step: ConnectionStep) -> None:
        """Move the connection from its current phase to the next phase, which depends on ``step``.

        Raises `IllegalConnectionStep` if the step isn't allowed in the current phase. The phase then stays the same.
        """
        after = _AFTER[self.phase][step]
        if after is None:
            raise IllegalConnectionStep(f"step {step.name} is not allowed in phase {self.phase.name}")
        self.phase = after
        self.since = None


# These are module constants, because reading an enum member from its class costs as much as a call.
_DROPPING, _LINGERING, _CLOSING = ConnectionPhase.DROPPING, ConnectionPhase.LINGERING, ConnectionPhase.CLOSING


class ResponseWriter(ConnectionLife, ABC):
    """Base class for a server's HTTP connection over ``stream``: the part that writes the responses.

    The subclass `HttpConnection` reads the requests, and decides whether the connection stays open after a response.
    """

    __slots__ = (
        *("_context", "_failure", "_is_last", "_nursery", "_outgoing", "_response", "_stream", "_writing", "client"),
    )

    def __init__(self, stream: trio.abc.Stream, client: Any = None) -> None:
        super().__init__()
        self.client = client
        """The peer of ``stream``, as an object of the application."""
        self._stream = stream
        self._outgoing = OutgoingBytes(stream)
        self._response: HttpResponse | None = None
        """The response that is in progress."""
        self._is_last = False
        """Whether the connection should end after the current response or, if there is none, after the next."""
        self._writing = False
        """Whether a task is writing the rest of an answer."""
        self._nursery: trio.Nursery | None = None
        self._context: contextvars.Context | None = None
        self._failure: Exception | None = None

    @property
    def _reads_no_request(self) -> bool:
        """Whether the connection reads no more requests. The writing task then ends the connection."""
        return self.phase is _CLOSING or self.phase is _LINGERING or self.phase is _DROPPING

    @abstractmethod
    def _finish(self) -> None:
        """Called when the current response was written completely. Subclasses continue with the next request."""

    def respond(self, response: HttpResponse, answer: Answer, *, close: bool) -> None:
        """Write ``answer`` as the complete response to the current request. `HttpResponse` calls this method."""
        head = response.head
        if close or head is None or head.http_1_0 or ("connection" in head.headers and head.is_last):
            self._is_last = True
        data, body = answer_bytes(answer, close=self._is_last, has_body=head is None or head.method != "HEAD")
        if self._outgoing.put(data, body):
            self._finish()
        else:
            self._start_writing()

    def respond_with(self, response: HttpResponse, status: int, headers: bytes, source: ResponseBody) -> None:
        """Start to write a streamed response to the current request. `HttpResponse` calls this method."""
        head = response.head
        assert head is not None
        self._is_last = is_last = self._is_last or head.is_last
        # RFC 9112 section 6.1: HTTP/1.0 has no chunked encoding
        chunked = not head.http_1_0
        data = stream_head(status, headers, chunked=chunked, close=is_last)
        if head.method != "HEAD":
            self._outgoing.put_stream(data, source, chunked=chunked)
            self._start_writing()
            return
        on_gone = response.finish()
        if self._outgoing.put(data):
            self._finish()
        else:
            self._start_writing()
        on_gone()

    def _start_writing(self) -> None:
        if not self._writing:
            self._writing = True
            self._start_soon(self._write)

    async def _write(self) -> None:
        """Write the waiting bytes until the current response is complete. After the last response, end the
        connection."""
        try:
            while self._outgoing.is_waiting:
                await self._outgoing.write_all()
                if self._response is not None and self._response.begun:
                    self._finish()
            if self._reads_no_request:
                await self._finish_writing()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            drop_tracebacks(error)
            self._gone()
            self._cancel("the client has stopped reading")
        except Exception as error:
            self._failed(error)
        finally:
            self._writing = False

    async def _finish_writing(self) -> None:
        # RFC 9112 section 9.6: close only the sending direction, because a full close could lose the response.
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        elif self.phase is _CLOSING:
            self._cancel("the last answer is written")

    def _cancel(self, reason: str) -> None:
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason=reason)

    def _gone(self) -> None:
        """Notify the application that the client has disconnected before the response was complete."""
        response, self._response = self._response, None
        if response is not None:
            response.finish()()

    def _failed(self, failure: Exception) -> None:
        self._failure = failure
        self._cancel("the application failed")

    def _start_soon(self, function: Callable[[], Awaitable[None]]) -> None:
        # Don't start the task in the current context, whose variables may belong to a request.
        assert self._nursery is not None
        assert self._context is not None
        self._context.run(self._nursery.start_soon, function)
