"""HttpConnection: the connection of one client to an HTTP server, from the first byte until the connection ends."""

from __future__ import annotations

import contextvars
import math
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import trio

from ...concurrency.fair_share import UNCOUNTED, HeldBytes
from ...concurrency.wakeups import Sleeper
from ..streams import drop_tracebacks, receiver, until_broken
from .application import (
    Admitted,
    Answer,
    BadRequest,
    DeferredDecision,
    HttpApplication,
    HttpBounds,
    RequestHead,
    UnservedBody,
    do_nothing,
)
from .requests import RequestReader
from .responses import CONTINUE, ConnectionPhase, ConnectionStep, HttpResponse, ResponseWriter

_NO_ROOM: Final = "incomplete requests take too many bytes; try again later"
_AT_ONCE: Final = 16
"""Number of pipelined requests that a connection serves before it lets other tasks run."""


# These are module constants, because reading an enum member from its class costs as much as a call.
_NEW, _FIRST, _IDLE, _HEAD, _ASKED, _BODY, _SERVED, _REFUSED, _DROPPING, _LINGERING, _CLOSING, _OVER = ConnectionPhase
_RECEIVE, _ASK, _AWAIT, _SERVE, _REFUSE, _GO_ON, _DROP, _LINGER, _CLOSE, _END = ConnectionStep


class HttpConnection(ResponseWriter):
    """A server's connection to one HTTP client. Passes the client's requests to ``application``, one after another.

    The task of `serve` keeps reading while a request is served, so that it detects a disconnect at once. A task that
    has an answer writes as much of it as the operating system accepts without waiting. A second task writes the rest,
    and streams; it exists only as long as that takes.
    """

    __slots__ = (
        *("_admission", "_application", "_bounds", "_head", "_held", "_lingered", "_missing", "_reader", "_resuming"),
        *("_renewed", "_room", "_unserved", "_upgrade"),
    )

    def __init__(
        self, stream: trio.abc.Stream, application: HttpApplication, bounds: HttpBounds, client: Any = None
    ) -> None:
        super().__init__(stream, client)
        self._application = application
        self._bounds = bounds
        self._reader = RequestReader(bounds)
        self._head: RequestHead | None = None
        """The parsed head of a request whose body has not arrived yet."""
        self._admission: Answer | Admitted | None = None
        """The application's decision on the head of the current request."""
        self._held: HeldBytes | None = None
        """Counter for bytes that were read but not served yet. `None` if there are only few such bytes."""
        self._unserved: UnservedBody | None = None
        """The body of an admitted request whose body was refused."""
        self._missing = 0
        """Maximum number of bytes of a refused body that are still expected, in phase `DROPPING`."""
        self._lingered = 0
        self._renewed = 0
        """Number of times that the client got more time to send the rest of a body that is too large. The time is
        extended at most once per second."""
        self._resuming = False
        """Whether buffered requests are being served, or a task is about to serve them."""
        self._room = Sleeper()
        self._upgrade: bytes | None = None
        """The bytes of a request to upgrade to a WebSocket."""

    @property
    def is_idle(self) -> bool:
        """True if no request is being served, and no complete request head has arrived.

        The client may still have to read the refusal of its last request.
        """
        return self.phase <= _HEAD or self.phase is _DROPPING

    @property
    def awaits_request(self) -> bool:
        """True if the client may already be sending its next request, which would be lost if `shut_down` were called
        now.

        This is so if nothing has arrived yet on a new connection, or if the next request head has arrived only in part.
        """
        return self.phase <= _HEAD and self.phase is not _IDLE

    async def serve(self) -> bytes | None:
        """Serve the client until the connection has ended, then close the stream. Raises the exceptions of the
        application.

        Exceptions of response bodies are raised as well.

        If the first request asks for a WebSocket, return the bytes read so far, and leave the stream open.
        """
        clean = False
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._context = contextvars.copy_context()
                if not self._is_last:
                    await self._read()
                # Don't cancel the task that writes the last response: it ends on its own.
                if nursery.child_tasks and not (self._writing and self._reads_no_request):
                    nursery.cancel_scope.cancel(reason="the HTTP connection has ended")
            clean = True
        finally:
            self.enter(_END)
            self._nursery = None
            self._gone()
            self._release()
            if self._unserved is not None:
                self._application.report_unserved(self._unserved)
            if self._upgrade is None:
                await self._aclose(clean=clean)
        if self._failure is not None:
            raise self._failure
        return self._upgrade

    async def _aclose(self, *, clean: bool) -> None:
        if type(self._stream) is trio.SocketStream:
            # Ending the connection has cancelled handlers. Let these handlers run before the socket closes.
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._stream.socket.close()
        elif not clean:  # this task was cancelled, so close the stream without waiting
            await trio.aclose_forcefully(self._stream)
        else:  # send TLS's close message: if a body has no length, this message marks its end
            deadline = trio.current_time() + self._bounds.linger_timeout
            with trio.CancelScope(shield=True, deadline=deadline), until_broken():
                await self._stream.aclose()

    def tick(self, now: float) -> None:
        """End the connection if its current phase takes too long. Call this method about once a second.

        ``now`` is the time on trio's clock.
        """
        outgoing = self._outgoing
        if outgoing.is_waiting:
            if outgoing.stalled(now) >= self._bounds.write_timeout:
                self._cancel("the client does not read")
            return
        limit = self._limit()
        if self.since is None:
            self.since = now
        elif now - self.since >= limit:
            if self.phase is _FIRST or self.phase is _HEAD or self.phase is _BODY:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request did not arrive within {limit:g} s")
            else:
                self._cancel("the connection was idle")

    def _limit(self) -> float:
        """Return the time limit of the connection's current phase, in seconds."""
        bounds = self._bounds
        match self.phase:
            case ConnectionPhase.NEW | ConnectionPhase.FIRST | ConnectionPhase.HEAD:
                return bounds.head_timeout
            case ConnectionPhase.IDLE:
                return bounds.idle_timeout
            case ConnectionPhase.DROPPING if self._reader.is_over:
                return bounds.linger_timeout
            case ConnectionPhase.BODY | ConnectionPhase.DROPPING:
                return bounds.body_timeout
            case ConnectionPhase.LINGERING | ConnectionPhase.CLOSING:
                return bounds.linger_timeout
            case _:  # no limit in phases such as SERVED, because the application limits the time of each request
                return math.inf

    def shut_down(self, *, now: bool = False) -> None:
        """End the connection after the response to the current request. If there is no current request, or ``now`` is
        true, end it at once."""
        self._is_last = True
        if now or self.phase <= _HEAD:
            self._cancel("the server ends")

    # Reading

    async def _read(self) -> None:
        """Read from the stream until the connection ends, or nothing more needs to be read."""
        receive = receiver(self._stream)
        reader, bounds = self._reader, self._bounds
        try:
            while data := await receive():
                if reader.is_over or self.phase >= _DROPPING:
                    if not self._drop(data):
                        return
                    continue
                reader.feed(data)
                del data  # drop the reference to the bytes, or a streamed response would keep its request in memory
                if self.phase < _SERVED and not self._resuming:
                    self._advance()
                    if self.phase is _OVER:
                        return
                # Continue reading while a request is served, to detect a disconnect.
                # A disconnect is received only after all bytes that the client sent before.
                # If a client keeps sending, its disconnect can't be detected, so end the connection.
                is_counted = len(reader.unread) > UNCOUNTED or self.phase is _BODY or self._held is not None
                if is_counted and not self._has_room():
                    return
                while self._resuming and len(reader.unread) >= bounds.max_unserved_bytes:
                    await self._room.sleep()
            self._sends_no_more()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            drop_tracebacks(error)
            self._gone()
        except Exception as error:
            self._failed(error)

    def _has_room(self) -> bool:
        """Count the buffered bytes of the connection, and return whether to read more.

        If the server has no memory left for a body, refuse the request. If the client has sent too many bytes of
        further requests, end the connection.
        """
        size = self._reader.size
        if self.phase >= _SERVED and size > self._bounds.max_pipelined_bytes:
            return False
        if size <= UNCOUNTED or self.phase is _ASKED:
            self._release()
            return True
        if self._held is None:
            if self._response is not None:
                head, caller = self._response.head, self._response.caller
            else:
                head, caller = self._head, self._admission.caller if isinstance(self._admission, Admitted) else None
            self._held = self._application.hold(head, caller, self.client)
        self._held.add(size - self._held.size)
        if not self._held.is_too_much:
            return True
        if self.phase is not _BODY:
            return False
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, _NO_ROOM)
        return True

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    def _drop(self, data: bytes) -> bool:
        """Discard bytes that arrive while a request is refused, or after the last response. Return whether to read
        more."""
        if self._unserved is not None:
            self._unserved.feed(data)
        if self.phase is _REFUSED:
            return True
        count = len(data)
        if self.phase is _DROPPING:
            if self.since is not None and self._reader.is_over and self._renewed < self._bounds.body_timeout:
                self._renewed += 1
                self.since = None
            self._missing -= count
            if self._missing > 0:
                return True
            count = -self._missing
            if not isinstance(self._stream, trio.abc.HalfCloseableStream):
                return False
            self.enter(_CLOSE)
        self._lingered += count
        return self._lingered <= self._bounds.max_linger_bytes

    def _sends_no_more(self) -> None:
        response = self._response
        if response is not None and response.begun and not self._outgoing.is_streaming:
            self._is_last = True
            self.enter(_CLOSE)  # the response is complete, but the client may still be reading it
        else:
            self._gone()

    def _advance(self) -> None:
        """Serve the requests that have arrived completely. Synchronous."""
        self._resuming = True
        for _ in range(_AT_ONCE):
            if not self._serve_next():
                self._resuming = self.phase is _ASKED
                return
        self._resume_soon()

    def _resume_soon(self, ask: DeferredDecision | None = None) -> None:
        self._resuming = True
        self._start_soon(partial(self._resume, ask))

    async def _resume(self, ask: DeferredDecision | None) -> None:
        try:
            if ask is not None:
                self._admission = await ask()
            self._advance()
        except Exception as error:
            self._failed(error)
        self._room.wake()

    def _serve_next(self) -> bool:
        """Serve the next request if it has arrived completely. Return whether another request may have arrived as
        well."""
        reader = self._reader
        waits_for_continue = False
        try:
            if self.phase is not _BODY:
                if not (self.phase is _ASKED or self._read_head()):
                    return False
                if not isinstance(self._admission, Admitted):
                    return self._refuse_early()
                assert self._head is not None
                if "expect" in self._head.headers:
                    waits_for_continue = self._head.waits_for_continue() and not reader.unread
            body = reader.body()
        except BadRequest as bad:
            self._refuse(bad.status, bad.reason)
            return False
        if body is None:
            if self.phase is not _BODY:
                self.enter(_AWAIT)
                if waits_for_continue and not self._outgoing.put(CONTINUE):
                    self._start_writing()
            return False
        head, admission = self._head, self._admission
        assert head is not None
        assert isinstance(admission, Admitted)
        self._head = self._admission = None
        if self._application.expects_end:
            self._is_last = True
        self.enter(_SERVE)
        self._response = response = HttpResponse(self, head, admission.caller)
        self._application.serve(head, body, response, admission.caller)
        return self.phase is _IDLE and bool(reader.unread)

    def _read_head(self) -> bool:
        """If the next request head has arrived completely, parse it and call the application's `admit`.

        Return whether the application has admitted or refused the request.
        """
        reader, is_first = self._reader, self.phase <= _FIRST
        begun = bytes(reader.unread) if is_first else b""
        head = self._head = reader.head()
        if head is None:
            if reader.unread and (self.phase is _NEW or self.phase is _IDLE):
                self.enter(_RECEIVE)
            return False
        if is_first and head.asks_for_websocket:
            self._upgrade = begun
            self.enter(_END)
            return False
        found = self._application.admit(head)
        if not isinstance(found, Answer | Admitted):
            self.enter(_ASK)
            self._resume_soon(found)
            return False
        self._admission = found
        return True

    def _refuse_early(self) -> bool:
        """Send the application's refusal of a request, before the body of the request is read.

        Return whether the next request can be served at once. This requires that the whole body has arrived: otherwise
        it's unknown where the next request starts.
        """
        head, refusal, reader = self._head, self._admission, self._reader
        assert head is not None
        assert isinstance(refusal, Answer)
        is_read = False
        try:
            # A client that waits for status 100 may now send or omit the body (RFC 9110 section 10.1.1).
            # Don't read another request, because the next bytes may be the body or a new request.
            if "expect" in head.headers:
                reader.discard()
            else:
                is_read = reader.body() is not None
        except BadRequest as bad:
            reader.discard(comes=bad.status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        self._respond_at_once(refusal, is_read=is_read)
        return self.phase is _IDLE and bool(reader.unread)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Refuse an invalid request with ``status``, without reading the rest of its body."""
        may_come_again = status is HTTPStatus.SERVICE_UNAVAILABLE
        if self._head is not None and isinstance(self._admission, Admitted) and not may_come_again:
            self._unserved = UnservedBody(self._head, self._admission.caller, status, reason, self._reader.part)
        # Most clients write the whole body before they read. Resetting the connection would lose the response.
        # A client that waits for status 100 hasn't sent the body yet, so there is nothing to discard.
        waits = self._head is not None and "expect" in self._head.headers and not self._reader.part
        is_sound = may_come_again or status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        self._reader.discard(comes=is_sound and not waits)
        self._release()
        self._respond_at_once(self._application.refusal(status, reason, self._head), is_read=False)

    def _respond_at_once(self, answer: Answer, *, is_read: bool) -> None:
        self.enter(_SERVE if is_read else _REFUSE)
        self._response = response = HttpResponse(self, self._head)
        self._head = self._admission = None
        response.answer(answer, close=not is_read)

    # After a response

    def _finish(self) -> None:
        """After the current response was written, continue with the next request, or end the connection."""
        response, self._response = self._response, None
        assert response is not None, "a response must be written only once"
        response.is_gone, response.on_gone = True, do_nothing
        if self.phase is _REFUSED:
            self._missing = self._reader.missing
            self.enter(_DROP if self._missing > 0 else _LINGER)
            self._start_writing()
        elif self._is_last:
            self.enter(_CLOSE)
            self._start_writing()
        else:
            self.enter(_GO_ON)
            if self._reader.unread and not self._resuming:
                self._resume_soon()
        self._room.wake()
