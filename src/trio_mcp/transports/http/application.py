"""HttpApplication stands behind an HTTP connection, and ResponseHandle is the way back to the client. Of a body that
the server refuses, `UnservedBody` keeps the beginning and the end, for the application to tell whose answer was there.
"""

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
    """A whole response."""

    status: int
    headers: bytes = b""
    """Lines as they are written, each with its ``\\r\\n``. The connection adds Date, Content-Length and Connection."""
    body: bytes = b""


@define(eq=False)
class Admitted:
    """Lets the body of a request be read, and the request be served."""

    caller: object | None = attrs.field(default=None, repr=False)
    """The sender of the request, in the words of the application; handed on to `HttpApplication.serve`."""


DeferredDecision: TypeAlias = Callable[[], Awaitable[Answer | Admitted]]
HeadDecision: TypeAlias = Answer | Admitted | DeferredDecision


class ResponseBody(Protocol):
    """The body of a response, as it comes into being."""

    async def next_chunk(self) -> bytes | bytearray:
        """Wait for the next bytes of the body and return them; empty at the end. Cancelled when the client goes."""
        ...


class ResponseHandle(ABC):
    """The response to one request, which the application makes by one call of `answer` or `stream`."""

    __slots__ = ("client", "is_gone", "on_gone")

    client: Any
    """The other end of the connection, in the words of the application."""
    is_gone: bool
    """True once the client has left, or the response is over: whatever is given then goes nowhere."""
    on_gone: Callable[[], None]
    """Called once, synchronously, when the client goes before the response is over. To be set by
    `HttpApplication.serve`."""

    @abstractmethod
    def answer(self, answer: Answer, *, close: bool = False) -> None:
        """Respond with ``answer``, and end the connection afterwards if ``close``. Synchronous. Nothing happens when
        the response has begun, or the client is gone."""

    @abstractmethod
    def stream(self, status: int, headers: bytes, source: ResponseBody) -> None:
        """Respond with a body that is taken from ``source`` piece by piece, until the source is at its end.
        Synchronous; ``headers`` as in `Answer`. Nothing happens when the response has begun, or the client is gone.

        To a HEAD request only the head is sent, ``source`` is never asked, and `on_gone` is called."""


def do_nothing() -> None:
    """Do nothing: the client is gone, and nobody minds."""


class HttpApplication(ABC):
    """The requests of a connection end here, one at a time and in order."""

    expects_end: bool = False
    """True once the application is about to end: each connection is closed after its next answer, which says so."""

    @abstractmethod
    def admit(self, head: RequestHead) -> HeadDecision:
        """Decide by the head alone, before the body is read or asked for: refuse the request, or admit the caller.

        A decision that takes time is returned as a function, which is awaited before anything more of the request
        is taken up, and cancelled when the client goes. An exception of the function ends the connection."""

    @abstractmethod
    def serve(self, head: RequestHead, body: bytes, response: ResponseHandle, caller: object | None) -> None:
        """Serve a request of ``caller``, whom `admit` has admitted. Synchronous; must not raise, and must in the end
        lead to a call of ``response``."""

    @abstractmethod
    def refusal(self, status: HTTPStatus, reason: str, head: RequestHead | None) -> Answer:
        """Return the answer to a fault that the connection has found. ``head`` is `None` where the fault is in the
        head."""

    @abstractmethod
    def hold(self, head: RequestHead | None, caller: object | None, client: object) -> HeldBytes:
        """Return a count for the bytes of ``client`` that are read, but not served. ``caller`` is who was admitted by
        ``head``, the last one that came; both are `None` where nobody was."""

    @abstractmethod
    def report_unserved(self, body: UnservedBody) -> None:
        """Note that the body of an admitted request was refused, by `refusal`. Called once, when no more of ``body``
        comes. Synchronous; must not raise."""


_KEPT: Final = 65536
"""Bytes that are kept of the beginning, and of the end."""
_MOST_DIGITS: Final = 20


class UnservedBody:
    """The beginning and the end of the body of a request of ``caller``, who was admitted by ``head``, but whose body
    was refused with ``status`` for ``reason``. ``part`` is what had come of the body by then."""

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
        """The length of the body; `None` where nobody knows it beforehand."""

    def feed(self, data: bytes) -> None:
        """Take more of the body, as it comes and is dropped."""
        if self._length is None:
            return
        data = data[: self._length - self._came]
        self._came += len(data)
        self.beginning += data[: _KEPT - len(self.beginning)]
        self._end += data[-_KEPT:]
        del self._end[:-_KEPT]

    @property
    def tail(self) -> bytes:
        """The last bytes of the body; empty where they have not come."""
        return bytes(self._end) if self._came == self._length else b""


def _length_of(head: RequestHead) -> int | None:
    told = head.headers.get("content-length", "")
    is_number = told.isascii() and told.isdecimal() and len(told) <= _MOST_DIGITS
    # What follows on a part of a body in chunks is not the body alone.
    return int(told) if is_number and "transfer-encoding" not in head.headers else None
