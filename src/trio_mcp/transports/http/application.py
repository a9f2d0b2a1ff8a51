"""`HttpApplication`: the interface that an HTTP connection calls for each request. `ResponseHandle` sends the response.
`UnservedBody` keeps the beginning and the end of a refused request body, so that the application can identify the
message in the body."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

import attrs

from ...classes import define
from ...concurrency.fair_share import HeldBytes
from .heads import RequestHead


@define(eq=False)
class Answer:
    """A complete HTTP response: status, headers and body."""

    status: int
    headers: bytes = b""
    r"""Header lines in the form in which they are sent, each with its ``\r\n``. The connection adds Date,
    Content-Length and Connection."""
    body: bytes = b""


@define(eq=False)
class Admitted:
    """Returned by `HttpApplication.admit` if the application will serve the request.

    The connection then reads the body of the request.
    """

    caller: object | None = attrs.field(default=None, repr=False)
    """The sender of the request, as an object of the application. The connection passes this object to
    `HttpApplication.serve`."""


DeferredDecision: TypeAlias = Callable[[], Awaitable[Answer | Admitted]]
HeadDecision: TypeAlias = Answer | Admitted | DeferredDecision


class ResponseBody(Protocol):
    """The body of a streamed response, returned in chunks."""

    async def next_chunk(self) -> bytes | bytearray:
        """Wait for the next chunk of the body and return it. Empty bytes mean the end of the body.

        If the client disconnects, the wait is cancelled.
        """
        ...


class ResponseHandle(ABC):
    """Sends the response to one HTTP request. The application calls `answer` or `stream` once."""

    __slots__ = ("client", "is_gone", "on_gone")

    client: Any
    """The peer of the connection, as an object of the application."""
    is_gone: bool
    """Whether the client has disconnected, or the response is complete. Any further response is ignored."""
    on_gone: Callable[[], None]
    """Callback that is called once, synchronously, if the client disconnects before the response is complete. Set by
    `HttpApplication.serve`."""

    @abstractmethod
    def answer(self, answer: Answer, *, close: bool = False) -> None:
        """Send a complete response.

        If ``close`` is true, close the connection afterwards. Synchronous. Does nothing if a response was already
        started, or the client has disconnected.
        """

    @abstractmethod
    def stream(self, status: int, headers: bytes, source: ResponseBody) -> None:
        """Send a streamed response, with the chunks of ``source`` as its body.

        For ``headers``, see `Answer`. Synchronous. Does nothing if a response was already started, or the client has
        disconnected.

        If the request is a HEAD request, only the head is sent, ``source`` isn't used, and `on_gone` is called.
        """


def do_nothing() -> None:
    """Do nothing. This is the default value of `ResponseHandle.on_gone`, the callback for a client that disconnects."""


class HttpApplication(ABC):
    """Interface of an object that handles the requests of an HTTP connection, one after another."""

    expects_end: bool = False
    """Whether the application is shutting down. If so, each connection is closed after its next response, and that
    response announces the close."""

    @abstractmethod
    def admit(self, head: RequestHead) -> HeadDecision:
        """Decide from the request head whether to serve or to refuse the request. The body isn't read yet.

        A decision that takes time is returned as a function. The connection awaits it before it processes more of the
        request, and cancels it if the client disconnects. If the function raises, the connection ends.
        """

    @abstractmethod
    def serve(self, head: RequestHead, body: bytes, response: ResponseHandle, caller: object | None) -> None:
        """Serve a request. ``caller`` is the sender of the request, as an object that `admit` has returned.

        Synchronous. Implementations must not raise, and must eventually call `ResponseHandle.answer` or
        `ResponseHandle.stream`.
        """

    @abstractmethod
    def refusal(self, status: HTTPStatus, reason: str, head: RequestHead | None) -> Answer:
        """Return the response to an invalid HTTP request. ``head`` is `None` if the request head itself is invalid."""

    @abstractmethod
    def hold(self, head: RequestHead | None, caller: object | None, client: object) -> HeldBytes:
        """Return a counter for the bytes that were read from ``client``, but belong to requests that aren't served yet.

        ``head`` is the head of the last admitted request, and ``caller`` its sender. Both are `None` if no request was
        admitted.
        """

    @abstractmethod
    def report_unserved(self, body: UnservedBody) -> None:
        """Called once for an admitted request whose body was refused, for example because it is too long.

        Called when no more bytes of the body will arrive.

        This method is synchronous, and implementations must not raise.
        """


_KEPT: Final = 65536
"""Number of bytes that are kept from the beginning of a refused body, and from its end."""
_MOST_DIGITS: Final = 20


class UnservedBody:
    """A request body that the server has refused with ``status`` and ``reason``. Only its beginning and its end are
    kept, to find the id of the JSON-RPC request in it.

    ``head`` is the head of the request, and ``caller`` its admitted sender. ``part`` is the part of the body that
    arrived before the refusal.
    """

    __slots__ = ("_came", "_end", "_length", "beginning", "caller", "head", "reason", "status")

    def __init__(
        self, head: RequestHead, caller: object, status: HTTPStatus, reason: str, part: bytes | bytearray
    ) -> None:
        self.head = head
        self.caller = caller
        self.status = status
        self.reason = reason
        self.beginning = bytes(part[:_KEPT])
        self._end = bytearray(part[-_KEPT:])
        self._came = len(part)
        self._length = _length_of(head)
        """The length of the body in bytes, or `None` if the length isn't known beforehand."""

    def feed(self, data: bytes) -> None:
        """Store bytes of the refused body that have arrived. Only the beginning and the end of the body are kept."""
        if self._length is None:
            return
        data = data[: self._length - self._came]
        self._came += len(data)
        self.beginning += data[: _KEPT - len(self.beginning)]
        self._end += data[-_KEPT:]
        del self._end[:-_KEPT]

    @property
    def tail(self) -> bytes:
        """The last bytes of a request body that this server has refused. Empty if the end of the body hasn't
        arrived."""
        return bytes(self._end) if self._came == self._length else b""


def _length_of(head: RequestHead) -> int | None:
    told = head.headers.get("content-length", "")
    is_number = told.isascii() and told.isdecimal() and len(told) <= _MOST_DIGITS
    # The last bytes of a chunked body aren't content, so treat the length of such a body as unknown.
    return int(told) if is_number and "transfer-encoding" not in head.headers else None
