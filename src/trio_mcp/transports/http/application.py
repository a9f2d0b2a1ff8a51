"""HttpApplication: what an HTTP connection calls with each request. ResponseHandle sends the response. `UnservedBody`
keeps the beginning and the end of a refused body, so that the application can find out which answer it contained."""

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
    """A complete response."""

    status: int
    headers: bytes = b""
    r"""Header lines as they are written, each with its ``\r\n``. The connection adds Date, Content-Length and
    Connection."""
    body: bytes = b""


@define(eq=False)
class Admitted:
    """The decision to read the body of a request, and to serve it."""

    caller: object | None = attrs.field(default=None, repr=False)
    """The sender of the request, of a type that the application chooses. It is passed to `HttpApplication.serve`."""


DeferredDecision: TypeAlias = Callable[[], Awaitable[Answer | Admitted]]
HeadDecision: TypeAlias = Answer | Admitted | DeferredDecision


class ResponseBody(Protocol):
    """The body of a response that is sent piece by piece."""

    async def next_chunk(self) -> bytes | bytearray:
        """Wait for the next bytes of the body and return them. Empty at the end. Cancelled when the client
        disconnects."""
        ...


class ResponseHandle(ABC):
    """The response to one request. The application calls `answer` or `stream` once."""

    __slots__ = ("client", "is_gone", "on_gone")

    client: Any
    """The peer of the connection, of a type that the application chooses."""
    is_gone: bool
    """Whether the client has disconnected, or the response is complete. A later response is ignored."""
    on_gone: Callable[[], None]
    """Called once, synchronously, if the client disconnects before the response is complete. To be set by
    `HttpApplication.serve`."""

    @abstractmethod
    def answer(self, answer: Answer, *, close: bool = False) -> None:
        """Respond with ``answer``, and close the connection afterwards if ``close``. Synchronous. Does nothing if the
        response has begun, or the client has disconnected."""

    @abstractmethod
    def stream(self, status: int, headers: bytes, source: ResponseBody) -> None:
        """Respond with a body that ``source`` returns piece by piece, until it ends. For ``headers``, see `Answer`.
        Synchronous. Does nothing if the response has begun, or the client has disconnected.

        If the request is a HEAD request, only the head is sent, ``source`` isn't used, and `on_gone` is called.
        """


def do_nothing() -> None:
    """Do nothing: the default for `ResponseHandle.on_gone`."""


class HttpApplication(ABC):
    """Handles the requests of a connection, one after another."""

    expects_end: bool = False
    """Whether the application is shutting down. Each connection is then closed after its next answer, which says so."""

    @abstractmethod
    def admit(self, head: RequestHead) -> HeadDecision:
        """Decide by the head alone, before the body is read: refuse the request, or admit the caller.

        A decision that takes time is returned as a function. The connection awaits it before it processes more of the
        request, and cancels it if the client disconnects. If the function raises, the connection ends.
        """

    @abstractmethod
    def serve(self, head: RequestHead, body: bytes, response: ResponseHandle, caller: object | None) -> None:
        """Serve a request of ``caller``, which `admit` has admitted. Synchronous. Must not raise, and must eventually
        cause a call of ``response``."""

    @abstractmethod
    def refusal(self, status: HTTPStatus, reason: str, head: RequestHead | None) -> Answer:
        """Return the answer to an error that the connection has found. ``head`` is `None` if the error is in the
        head."""

    @abstractmethod
    def hold(self, head: RequestHead | None, caller: object | None, client: object) -> HeldBytes:
        """Return a counter for the bytes of ``client`` that are read but not served. ``caller`` was admitted by
        ``head``, the last one received. Both are `None` if no caller was admitted."""

    @abstractmethod
    def report_unserved(self, body: UnservedBody) -> None:
        """Handle an admitted request whose body was refused, by `refusal`. Called once, when no more of ``body`` will
        arrive. Synchronous. Must not raise."""


_KEPT: Final = 65536
"""Number of bytes that are kept of the beginning, and of the end."""
_MOST_DIGITS: Final = 20


class UnservedBody:
    """The beginning and the end of a refused body. Its request was sent by ``caller`` and admitted by ``head``. The
    body was refused with ``status`` for ``reason``, when ``part`` of it had arrived."""

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
        """The length of the body, or `None` if it isn't known beforehand."""

    def feed(self, data: bytes) -> None:
        """Process more of the body, as it arrives and is discarded."""
        if self._length is None:
            return
        data = data[: self._length - self._came]
        self._came += len(data)
        self.beginning += data[: _KEPT - len(self.beginning)]
        self._end += data[-_KEPT:]
        del self._end[:-_KEPT]

    @property
    def tail(self) -> bytes:
        """The last bytes of the body, or empty if they have not arrived."""
        return bytes(self._end) if self._came == self._length else b""


def _length_of(head: RequestHead) -> int | None:
    told = head.headers.get("content-length", "")
    is_number = told.isascii() and told.isdecimal() and len(told) <= _MOST_DIGITS
    # The bytes that follow a part of a chunked body contain more than the body.
    return int(told) if is_number and "transfer-encoding" not in head.headers else None
