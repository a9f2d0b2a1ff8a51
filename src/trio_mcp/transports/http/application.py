"""HttpApplication: the interface that an HTTP connection calls with each request. ResponseHandle sends the response.
`UnservedBody` keeps the beginning and the end of a refused body, so that the application can find out which answer it
contained."""

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
    """The decision to read the body of a request, and to serve the request."""

    caller: object | None = attrs.field(default=None, repr=False)
    """The sender of the request, an object of the application. It is passed to `HttpApplication.serve`."""


DeferredDecision: TypeAlias = Callable[[], Awaitable[Answer | Admitted]]
HeadDecision: TypeAlias = Answer | Admitted | DeferredDecision


class ResponseBody(Protocol):
    """The body of a response that is sent in pieces."""

    async def next_chunk(self) -> bytes | bytearray:
        """Wait for the next bytes of the body and return them. The bytes are empty at the end of the body. The wait is
        cancelled when the client disconnects."""
        ...


class ResponseHandle(ABC):
    """Sends the response to one request. The application calls `answer` or `stream` once."""

    __slots__ = ("client", "is_gone", "on_gone")

    client: Any
    """The peer of the connection, an object of the application."""
    is_gone: bool
    """Whether the client has disconnected, or the response is complete. Any further response is ignored."""
    on_gone: Callable[[], None]
    """Callback that is called once, synchronously, if the client disconnects before the response is complete. Set by
    `HttpApplication.serve`."""

    @abstractmethod
    def answer(self, answer: Answer, *, close: bool = False) -> None:
        """Send ``answer`` as the response, and close the connection afterwards if ``close``. Synchronous. Does nothing
        if the response has begun, or the client has disconnected."""

    @abstractmethod
    def stream(self, status: int, headers: bytes, source: ResponseBody) -> None:
        """Send a response whose body ``source`` returns in pieces, until it ends. For ``headers``, see `Answer`.
        Synchronous. Does nothing if the response has begun, or the client has disconnected.

        If the request is a HEAD request, only the head is sent, ``source`` isn't used, and `on_gone` is called.
        """


def do_nothing() -> None:
    """Do nothing, as the default for `ResponseHandle.on_gone`."""


class HttpApplication(ABC):
    """Interface of an object that handles the requests of a connection, one after another."""

    expects_end: bool = False
    """Whether the application is shutting down. Each connection is then closed after its next answer, and that answer
    announces the close."""

    @abstractmethod
    def admit(self, head: RequestHead) -> HeadDecision:
        """Decide from the head, before the body is read, whether to refuse the request or to admit its caller.

        A decision that takes time is returned as a function. The connection awaits it before it processes more of the
        request, and cancels it if the client disconnects. If the function raises, the connection ends.
        """

    @abstractmethod
    def serve(self, head: RequestHead, body: bytes, response: ResponseHandle, caller: object | None) -> None:
        """Serve a request of ``caller``, which `admit` has admitted. Synchronous. Implementations must not raise, and
        must eventually call ``response``."""

    @abstractmethod
    def refusal(self, status: HTTPStatus, reason: str, head: RequestHead | None) -> Answer:
        """Return the answer to an invalid request, for an error that the connection has found. ``head`` is `None` if
        the error is in the head."""

    @abstractmethod
    def hold(self, head: RequestHead | None, caller: object | None, client: object) -> HeldBytes:
        """Return a counter for the bytes of ``client`` that are read but not served. ``caller`` was admitted with
        ``head``, the last head received. Both are `None` if no caller was admitted."""

    @abstractmethod
    def report_unserved(self, body: UnservedBody) -> None:
        """Handle an admitted request whose body was refused by `refusal`. Called once, when no more of ``body`` will
        arrive. Synchronous. Implementations must not raise."""


_KEPT: Final = 65536
"""Number of bytes that are kept of the beginning and of the end of a refused body."""
_MOST_DIGITS: Final = 20


class UnservedBody:
    """The beginning and the end of a refused request body. The request was sent by ``caller`` and admitted with
    ``head``. The body was refused with ``status`` for ``reason``, when ``part`` of it had arrived."""

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
        """Process more bytes of the body, which arrive and are discarded."""
        if self._length is None:
            return
        data = data[: self._length - self._came]
        self._came += len(data)
        self.beginning += data[: _KEPT - len(self.beginning)]
        self._end += data[-_KEPT:]
        del self._end[:-_KEPT]

    @property
    def tail(self) -> bytes:
        """The last bytes of the body, or no bytes if these haven't arrived."""
        return bytes(self._end) if self._came == self._length else b""


def _length_of(head: RequestHead) -> int | None:
    told = head.headers.get("content-length", "")
    is_number = told.isascii() and told.isdecimal() and len(told) <= _MOST_DIGITS
    # After a part of a chunked body, the stream contains more than the body: sizes of chunks, for example.
    return int(told) if is_number and "transfer-encoding" not in head.headers else None
