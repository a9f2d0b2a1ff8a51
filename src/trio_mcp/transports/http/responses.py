"""ResponseWriter writes the responses to a client, one after another. Answers are written by the task that has them, as
far as the system takes them without waiting; the rest, and streams, by a second task, which exists only as long as that
takes."""

from __future__ import annotations

import contextvars
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ..streams import let_go_of_cause
from .application import Answer, Response, Source, nothing
from .heads import RequestHead
from .outgoing import Outgoing, answer_bytes, stream_head
from .phases import ConnectionLife, ConnectionPhase


class HttpResponse(Response):
    """The response to one request over a connection."""

    __slots__ = ("begun", "caller", "connection", "head")

    def __init__(self, connection: ResponseWriter, head: RequestHead | None, caller: object | None = None) -> None:
        self.client = connection.client
        self.is_gone = False
        self.on_gone = nothing
        self.connection = connection
        self.head = head
        self.caller = caller
        self.begun = False

    def answer(self, answer: Answer, *, close: bool = False) -> None:
        if not self.begun and not self.is_gone:
            self.begun = True
            self.connection.respond(self, answer, close=close)

    def over(self) -> Callable[[], None]:
        """Note that the response is over, and return what was to be called if the client had gone."""
        self.is_gone = True
        on_gone, self.on_gone = self.on_gone, nothing
        return on_gone

    def stream(self, status: int, headers: bytes, source: Source) -> None:
        if not self.begun and not self.is_gone:
            self.begun = True
            self.connection.respond_with(self, status, headers, source)


# Reading a member from its class costs as much as a call.
_DROPPING, _LINGERING, _CLOSING = ConnectionPhase.DROPPING, ConnectionPhase.LINGERING, ConnectionPhase.CLOSING


class ResponseWriter(ConnectionLife, ABC):
    """The half of a connection over ``stream`` that writes. The other half, `HttpConnection`, reads, and knows the way
    on from a response."""

    __slots__ = (
        "_context",
        "_failure",
        "_is_last",
        "_nursery",
        "_outgoing",
        "_response",
        "_stream",
        "_writing",
        "client",
    )

    def __init__(self, stream: trio.abc.Stream, client: Any = None) -> None:
        super().__init__()
        self.client = client
        """The other end of ``stream``, in the words of the application."""
        self._stream = stream
        self._outgoing = Outgoing(stream)
        self._response: HttpResponse | None = None
        """The response that is not over."""
        self._is_last = False
        """True once the connection is to end behind the present response, or, where there is none, behind the next."""
        self._writing = False
        """True while a task writes the rest of an answer."""
        self._nursery: trio.Nursery | None = None
        self._context: contextvars.Context | None = None
        self._failure: Exception | None = None

    @property
    def _reads_no_request(self) -> bool:
        """True once no other request is read. The task that writes then ends the connection."""
        return self.phase is _CLOSING or self.phase is _LINGERING or self.phase is _DROPPING

    @abstractmethod
    def _finish(self) -> None:
        """Go on after the present response, which is written."""

    def respond(self, response: HttpResponse, answer: Answer, *, close: bool) -> None:
        """Write ``answer``. To be called by `HttpResponse`, once and for the present one."""
        head = response.head
        self._is_last = is_last = close or self._is_last or head is None or head.is_last
        self._put(answer_bytes(answer, close=is_last, has_body=head is None or head.method != "HEAD"))

    def respond_with(self, response: HttpResponse, status: int, headers: bytes, source: Source) -> None:
        """Begin to write a stream. To be called by `HttpResponse`, once and for the present one."""
        head = response.head
        assert head is not None
        self._is_last = is_last = self._is_last or head.is_last
        # RFC 9112 section 6.1: no chunks for HTTP/1.0
        chunked = not head.http_1_0
        data = stream_head(status, headers, chunked=chunked, close=is_last)
        if head.method == "HEAD":
            on_gone = response.over()
            self._put(data)
            on_gone()
        else:
            self._outgoing.put_stream(data, source, chunked=chunked)
            self._start_writing()

    def _put(self, data: bytes) -> None:
        """Write the present response."""
        if self._outgoing.put(data):
            self._finish()
        else:
            self._start_writing()

    def _start_writing(self) -> None:
        if not self._writing:
            self._writing = True
            self._start_soon(self._write)

    async def _write(self) -> None:
        """Write what did not go at once, to the end of the present response, and the end of the connection."""
        try:
            while self._outgoing.waits:
                await self._outgoing.write_all()
                if self._response is not None and self._response.begun:
                    self._finish()
            if self._reads_no_request:
                await self._say_last()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            let_go_of_cause(error)
            self._gone()
            self._cancel("the client reads no more")
        except Exception as error:
            self._failed(error)
        finally:
            self._writing = False

    async def _say_last(self) -> None:
        # RFC 9112 section 9.6: the client may still be sending, and would lose the answer to a reset.
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        elif self.phase is _CLOSING:
            self._cancel("the last answer is written")

    def _cancel(self, reason: str) -> None:
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason=reason)

    def _gone(self) -> None:
        """Tell the application that the client of the present response, if any, is gone."""
        response, self._response = self._response, None
        if response is not None:
            response.over()()

    def _failed(self, failure: Exception) -> None:
        self._failure = failure
        self._cancel("the application failed")

    def _start_soon(self, function: Callable[[], Awaitable[None]]) -> None:
        # Whoever calls may be the task of a request, and what that task's context holds is no business of others.
        assert self._nursery is not None
        assert self._context is not None
        self._context.run(self._nursery.start_soon, function)
