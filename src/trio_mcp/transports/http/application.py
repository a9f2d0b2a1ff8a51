"""`HttpApplication`: the interface that an HTTP connection calls for each request. `RequestHead` is the head of the
request, and `ResponseHandle` sends the response. `HttpBounds` limits what a client may send and how long that may take.
`UnservedBody` keeps the beginning and the end of a refused request body, so that the application can identify the
message in the body."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

import attrs

from ...classes import define, frozen
from ...concurrency.fair_share import HeldBytes
from ...lazy import lazy_pattern

_WEBSOCKET: Final = lazy_pattern(r"(?:^|,)[ \t]*+websocket[ \t]*+(?:,|$)", re.IGNORECASE | re.ASCII)
_CLOSE: Final = lazy_pattern(r"(?:^|,)[ \t]*+close[ \t]*+(?:,|$)", re.IGNORECASE | re.ASCII)
"""Pattern of an element of a header that is a list (RFC 9110 section 5.6.1)."""
_LONGEST_LIST: Final = 1000
"""Maximum number of characters that are parsed of a header that is a list. A search starts at each comma, so long lists
take long."""


class BadRequest(Exception):
    """Raised for an invalid HTTP request, which gets a response with ``status``.

    The connection then ends, because it's unknown where the next request starts.
    """

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@frozen
class HttpBounds:
    """The limits of an HTTP connection. Times are in seconds, and are checked only when `HttpConnection.tick` is
    called."""

    max_head_bytes: int = 16 * 1024
    """Maximum number of bytes from the request line to the empty line after the headers."""
    max_target_bytes: int = 8 * 1024
    max_headers: int = 100
    max_body_bytes: int = 4 * 1024 * 1024
    max_unserved_bytes: int = 64 * 1024
    """Number of bytes after a head at which reading pauses, while the application decides on the head."""
    max_pipelined_bytes: int = 1024 * 1024
    """Maximum number of bytes that are read ahead while a request is served. If the client sends more bytes, the
    connection ends. Reading doesn't pause, because a disconnect is received only after all bytes that the client sent
    before."""
    head_timeout: float = 10.0
    """Seconds from the first byte of a head to its last byte. For the first head of a connection, the time starts when
    the connection opens."""
    body_timeout: float = 60.0
    """Seconds from the last byte of a head to the last byte of the body."""
    idle_timeout: float = 75.0
    """Seconds between two requests on a connection."""
    write_timeout: float = 30.0
    """Seconds within which a client must accept some of the bytes that are being sent."""
    linger_timeout: float = 2.0
    """Seconds for which the connection stays open after the last response, so that the client can read it."""
    max_dropped_bytes: int = 64 * 1024 * 1024
    """Maximum number of bytes of the rest of a refused body that are read and discarded, within `body_timeout`. Most
    clients write the whole body before they read, and would lose the response if the connection were reset. If the body
    is too large, each pause between two pieces can be at most `linger_timeout`."""
    max_linger_bytes: int = 1024 * 1024
    """Maximum number of bytes that are read and discarded after the last response. If a connection closes with unread
    bytes, it is reset, and the client might never receive the last response. The rest of a refused body is discarded
    earlier: see `max_dropped_bytes`."""


@define(eq=False)
class RequestHead:
    """The head of an HTTP request: the request line and the headers."""

    method: str
    target: str = attrs.field(repr=False)
    path: str
    """The request target without its query, as received, without decoding. If the target is an absolute URL, this is
    the URL's path, and the URL's authority is ``host`` in `headers`."""
    headers: dict[str, str] = attrs.field(repr=False)
    """Header values in Latin-1 without surrounding blanks, keyed by name in lower case. The values of a repeated header
    are joined with commas."""
    repeated: frozenset[str]
    """Names of headers that occurred more than once."""
    http_1_0: bool
    accepts: str | None = None
    """The only media type that the client accepts, as determined by the application. `None` if the client accepts
    any."""

    @property
    def asks_for_websocket(self) -> bool:
        """Whether the request asks to upgrade the connection to a WebSocket."""
        upgrade = self.headers.get("upgrade")
        return (
            upgrade is not None
            and self.method == "GET"
            and not self.http_1_0  # RFC 9110 section 7.8: ignore Upgrade in HTTP/1.0
            and _WEBSOCKET.search(upgrade, 0, _LONGEST_LIST) is not None
        )

    @property
    def is_last(self) -> bool:
        """Whether the client will send no further request on this connection (RFC 9112 section 9.6)."""
        connection = self.headers.get("connection")
        return self.http_1_0 or (
            connection is not None
            and connection != "keep-alive"
            and _CLOSE.search(connection, 0, _LONGEST_LIST) is not None
        )

    def waits_for_continue(self) -> bool:
        """Return whether the client waits for a response with status 100 before it sends the request body.

        Raises `BadRequest` for an Expect header with any other value.
        """
        expected = self.headers.get("expect")
        if expected is None or self.http_1_0:  # RFC 9110 section 10.1.1
            return False
        if expected.lower() != "100-continue":
            raise BadRequest(
                HTTPStatus.EXPECTATION_FAILED, "the only supported value of the Expect header is 100-continue"
            )
        return True


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
