"""HttpConnection: one client of an HTTP server, from its first byte to the end of its connection."""

from __future__ import annotations

import contextvars
import math
from contextlib import suppress
from enum import Enum
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import trio

from ...concurrency.fair_share import UNCOUNTED, HeldBytes
from ...concurrency.wakeups import Sleeper
from ..streams import let_go_of_cause, receiver, until_broken
from .application import Admission, Answer, Ask, HttpApplication, UnservedBody
from .heads import BadRequest, HttpBounds, RequestHead
from .outgoing import CONTINUE
from .requests import RequestReader
from .responses import HttpResponse, ResponseWriter

_NO_ROOM: Final = "too many bytes of requests wait for their rest; try again later"
_AT_ONCE: Final = 16
"""Pipelined requests that are served before other tasks get their turn."""


class _Phase(Enum):
    """The phases of a connection, of which each leads to the next, and most requests skip `ASKED`; from `HEAD`, `ASKED`
    and `BODY` a refusal leads to `DROPPING` or `CLOSING`, and from `SERVED` the end of a response to `IDLE`, or to
    `CLOSING`."""

    IDLE = "between requests"
    HEAD = "a part of a head has come"
    ASKED = "a head has come, and the application finds out whether to admit its caller"
    BODY = "a head has come, and not all of the body"
    SERVED = "the application has the request, or its answer is being written"
    DROPPING = "a refusal by the head is written, and the client may send the body and read the refusal"
    CLOSING = "the last answer is written, and the client may read it"
    OVER = "the connection has ended"


# Reading a member from its class costs as much as a call.
_IDLE, _HEAD, _ASKED, _BODY, _SERVED, _DROPPING, _CLOSING, _OVER = _Phase


class HttpConnection(ResponseWriter):
    """The requests of a client over ``stream``, each given to ``application``, in order and one at a time.

    The task of `serve` reads, also while a request is served, so that the end of the connection is noticed at once.
    Answers are written by the task that has them, as far as the system takes them without waiting; the rest, and
    streams, by a second task, which exists only as long as that takes.
    """

    __slots__ = (
        *("_advancing", "_application", "_bounds", "_drops_body", "_first", "_head", "_held", "_lingered", "_looked"),
        *("_missing", "_phase", "_reader", "_resuming", "_room", "_since", "_unserved", "_upgrade"),
    )

    def __init__(
        self,
        stream: trio.abc.Stream,
        application: HttpApplication,
        bounds: HttpBounds,
        client: Any = None,
    ) -> None:
        super().__init__(stream, client)
        self._application = application
        self._bounds = bounds
        self._reader = RequestReader(bounds)
        self._phase = _IDLE
        self._since: float | None = None
        """Time of the first `tick` in the present phase."""
        self._first = True
        """True before the first request."""
        self._head: RequestHead | None = None
        """The head whose body is to come."""
        self._looked: Answer | Admission | None = None
        """The decision of the application on that head."""
        self._held: HeldBytes | None = None
        """The count of the bytes that are read but not served, where they are many."""
        self._unserved: UnservedBody | None = None
        """The body of an admitted request that was refused."""
        self._missing = 0
        """Bytes of a refused body that are to come, at most, in phase `DROPPING`."""
        self._drops_body = False
        """True when the body of the present request is refused, and would have been read otherwise."""
        self._lingered = 0
        self._advancing = False
        self._resuming = False
        """True while a task is to go on with the requests that wait."""
        self._room = Sleeper()
        self._upgrade: bytes | None = None
        """The bytes of a request for a WebSocket."""

    @property
    def is_idle(self) -> bool:
        """True while the client has sent no whole head of a request that is not answered, and has nothing to read but
        a refusal."""
        return self._phase is _IDLE or self._phase is _HEAD or self._phase is _DROPPING

    async def serve(self) -> bytes | None:
        """Serve the client until the connection has ended, and close the stream. Exceptions of the application and of
        its sources leave as they are.

        Returns the bytes read so far, with the stream left open, when the first request asks for a WebSocket.
        """
        clean = False
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._context = contextvars.copy_context()
                if not self._ending:
                    await self._read()
                if not (self._writing and self._is_last_written):  # else the writing task ends by itself
                    nursery.cancel_scope.cancel(reason="the HTTP connection has ended")
            clean = True
        finally:
            self._phase = _OVER
            self._nursery = None
            self._gone()
            self._release()
            if self._unserved is not None:
                self._application.unserved(self._unserved)
            if self._upgrade is None:
                await self._aclose(clean=clean)
        if self._failure is not None:
            raise self._failure
        return self._upgrade

    async def _aclose(self, *, clean: bool) -> None:
        if not clean:  # a cancel, which is to wait for nothing
            await trio.aclose_forcefully(self._stream)
        else:  # TLS says goodbye, which tells a client that was told no length that it has all of the body
            deadline = trio.current_time() + self._bounds.linger_timeout
            with trio.CancelScope(shield=True, deadline=deadline), until_broken():
                await self._stream.aclose()

    def tick(self, now: float) -> None:
        """End the connection when the time of its phase is over at ``now``, by the clock of trio. To be called about
        every second."""
        outgoing = self._outgoing
        if outgoing.waits:
            if outgoing.stalled(now) >= self._bounds.write_timeout:
                self._cancel("the client does not read")
            return
        limit = self._limit()
        if self._since is None:
            self._since = now
        elif now - self._since >= limit:
            if self._phase is _HEAD or self._phase is _BODY:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request did not come within {limit:g} s")
            else:
                self._cancel("the connection was idle")

    def _limit(self) -> float:
        """Return the seconds that the present phase may take."""
        phase, bounds = self._phase, self._bounds
        if phase is _HEAD or self._first:
            return bounds.head_timeout
        if phase is _IDLE:
            return bounds.idle_timeout
        if phase is _BODY or phase is _DROPPING:
            return bounds.body_timeout
        return bounds.linger_timeout if phase is _CLOSING else math.inf  # the application takes its time

    def end(self, *, now: bool = False) -> None:
        """End the connection after the present request, or now: where there is none, or, with ``now``, whatever is
        under way."""
        self._ending = True
        if now or self._phase is _IDLE or self._phase is _HEAD:
            self._cancel("the server ends")

    # Reading

    async def _read(self) -> None:
        """Read until the end of the connection, or until nothing more needs to be read."""
        receive = receiver(self._stream)
        reader, bounds = self._reader, self._bounds
        try:
            while data := await receive():
                if self._phase is _CLOSING or self._phase is _DROPPING or reader.is_over:
                    if not self._drop(data):
                        return
                    continue
                reader.feed(data)
                if self._phase is not _SERVED and not self._resuming:
                    self._advance()
                    if self._phase is _OVER:
                        return
                # The end of a connection comes behind all that was sent before. So nothing stops the reading while a
                # request is served, and a client that sends ever more, whose end nobody could see, is at its end here.
                is_counted = len(reader.unread) > UNCOUNTED or self._phase is _BODY or self._held is not None
                if is_counted and not self._has_room():
                    return
                while self._resuming and len(reader.unread) >= bounds.max_unserved_bytes:
                    await self._room.sleep()
            self._sends_no_more()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            let_go_of_cause(error)
            self._gone()
        except Exception as error:
            self._failed(error)

    def _has_room(self) -> bool:
        """Count the bytes that wait here. Return whether to go on: a body for which the server has no room is refused,
        and a connection that is to read that much, or too much, ahead is at its end."""
        size = self._reader.size
        if self._phase is _SERVED and size > self._bounds.max_pipelined_bytes:
            return False
        if size <= UNCOUNTED or self._phase is _ASKED:
            self._release()
            return True
        if self._held is None:
            if self._response is not None:
                head, caller = self._response.head, self._response.caller
            else:
                head, caller = self._head, self._looked.caller if isinstance(self._looked, Admission) else None
            self._held = self._application.hold(head, caller, self.client)
        self._held.add(size - self._held.size)
        if not self._held.is_too_much:
            return True
        if self._phase is not _BODY:
            return False
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, _NO_ROOM)
        return True

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    def _drop(self, data: bytes) -> bool:
        """Drop what came behind the last answer, or before that was written. Return whether to read on."""
        if self._unserved is not None:
            self._unserved.feed(data)
        if self._phase is _SERVED:
            return True
        count = len(data)
        if self._phase is _DROPPING:
            self._missing -= count
            if self._missing > 0:
                return True
            count = -self._missing
            if not isinstance(self._stream, trio.abc.HalfCloseableStream):
                return False
            self._enter(_CLOSING)
        self._lingered += count
        return self._lingered <= self._bounds.max_linger_bytes

    def _sends_no_more(self) -> None:
        response = self._response
        if response is not None and response.begun and not self._outgoing.streams:
            # All of the answer is there, and the client may read what is not written yet.
            self._close = True
            self._enter(_CLOSING)
        else:
            self._gone()

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._since = None

    def _advance(self) -> None:
        """Serve the requests that have come. Synchronous."""
        self._advancing = True
        try:
            for _ in range(_AT_ONCE):
                if not self._serve_next():
                    return
        finally:
            self._advancing = False
        self._resume_soon()

    def _resume_soon(self, ask: Ask | None = None) -> None:
        self._resuming = True
        self._start_soon(partial(self._resume, ask))

    async def _resume(self, ask: Ask | None) -> None:
        try:
            if ask is not None:
                self._looked = await ask()
            self._resuming = False
            self._advance()
        except Exception as error:
            self._failed(error)
        self._room.wake()

    def _serve_next(self) -> bool:
        """Serve one request, if all of it has come. Return whether the next one may be served at once."""
        reader = self._reader
        try:
            if self._phase is _BODY:
                body = reader.body()
            else:
                if self._phase is _ASKED:
                    head, looked = self._head, self._looked
                    assert head is not None
                else:
                    begun = bytes(reader.unread) if self._first else b""
                    head = reader.head()
                    if head is None:
                        if reader.unread and self._phase is _IDLE:
                            self._enter(_HEAD)
                        return False
                    if self._first:
                        self._first = False
                        if head.asks_for_websocket:
                            self._upgrade = begun
                            self._enter(_OVER)
                            return False
                    self._head = head
                    looked = self._application.look(head)
                if not isinstance(looked, Admission):
                    if isinstance(looked, Answer):
                        return self._refuse_early(looked, head)
                    assert looked is not None
                    self._enter(_ASKED)
                    self._resume_soon(looked)
                    return False
                self._looked = looked
                body = self._begin_body(head)
        except BadRequest as bad:
            self._refuse(bad.status, bad.reason)
            return False
        if body is None:
            return False
        head, admission = self._head, self._looked
        assert head is not None
        assert isinstance(admission, Admission)
        self._head = self._looked = None
        self._phase = _SERVED
        self._response = response = HttpResponse(self, head, admission.caller)
        self._application.serve(head, body, response, admission.caller)
        return self._phase is _IDLE and bool(reader.unread)

    def _begin_body(self, head: RequestHead) -> bytes | None:
        """Return the body, or `None` when more of it is to come, and ask for it where the client waits for that."""
        reader = self._reader
        waits = "expect" in head.headers and head.waits_for_continue() and not reader.unread
        body = reader.body()
        if body is None:
            self._enter(_BODY)
            if waits and not self._outgoing.put(CONTINUE):
                self._start_writing()
        return body

    def _refuse_early(self, refusal: Answer, head: RequestHead) -> bool:
        """Answer before the body is read. Return whether the next request may be served at once: where it begins is
        known only when all of the body has come already."""
        is_read = False
        # A client that waits for 100 (RFC 9110 section 10.1.1) may now send the body, or not.
        if "expect" not in head.headers:
            with suppress(BadRequest):
                is_read = self._reader.body() is not None
                self._drops_body = not is_read  # most clients send all of the body before they read a word
        self._unread = not is_read
        self._respond_at_once(refusal, close=not is_read)
        return self._phase is _IDLE and bool(self._reader.unread)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Answer to a request that cannot be read to its end."""
        self._unread = True
        may_come_again = status is HTTPStatus.SERVICE_UNAVAILABLE
        if self._head is not None and isinstance(self._looked, Admission) and not may_come_again:
            self._unserved = UnservedBody(self._head, self._looked.caller, status, reason, self._reader.part)
        self._reader.forget()
        self._release()
        self._respond_at_once(self._application.refusal(status, reason, self._head), close=True)

    def _respond_at_once(self, answer: Answer, *, close: bool) -> None:
        self._phase = _SERVED
        self._response = response = HttpResponse(self, self._head)
        self._head = self._looked = None
        response.answer(answer, close=close)

    # After a response

    @property
    def _is_last_written(self) -> bool:
        """True once the last answer is written."""
        return self._phase is _CLOSING or self._phase is _DROPPING

    def _finish(self) -> None:
        """The present response is written."""
        response, self._response = self._response, None
        assert response is not None, "one response is written once"
        response.over()
        if self._close:
            self._missing = self._reader.missing if self._drops_body else 0
            self._enter(_DROPPING if self._missing > 0 else _CLOSING)
            self._start_writing()
        else:
            self._phase = _IDLE
            self._since = None
            if self._reader.unread and not self._advancing:
                self._resume_soon()
        self._room.wake()
