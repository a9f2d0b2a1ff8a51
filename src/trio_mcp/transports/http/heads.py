"""RequestHead: a parsed HTTP request line with its headers. HeadCache caches the last head of a connection, because
many clients repeat the same head, except for the length of the body.

`HttpBounds` limits what a client may send and how long that may take. `BadRequest` refuses a request that is invalid or
exceeds a limit.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

import attrs

from ...classes import define, frozen
from ...lazy import lazy_pattern

_WEBSOCKET: Final = lazy_pattern(r"(?:^|,)[ \t]*+websocket[ \t]*+(?:,|$)", re.IGNORECASE | re.ASCII)
_CLOSE: Final = lazy_pattern(r"(?:^|,)[ \t]*+close[ \t]*+(?:,|$)", re.IGNORECASE | re.ASCII)
"""Pattern of an element of a header that is a list (RFC 9110 section 5.6.1)."""
_LONGEST_LIST: Final = 1000
"""Maximum number of characters that are parsed of a header that is a list. A search starts at each comma, so long lists
take long."""
_LENGTH: Final = lazy_pattern(rb"\r\ncontent-length: ([0-9]{1,9})\r\n", re.IGNORECASE)
_MOST_DIGITS: Final = 9
_LONGEST: Final = 4096
"""Maximum number of bytes of a cached head, because there may be many idle connections."""


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

    def with_length(self, digits: bytes) -> RequestHead:
        """Return a copy of the request head with another Content-Length, whose value is ``digits``."""
        headers = {**self.headers, "content-length": digits.decode("ascii")}
        return RequestHead(self.method, self.target, self.path, headers, self.repeated, self.http_1_0)

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


class HeadCache:
    """Caches the last request head of one connection.

    The first head isn't cached, because many connections carry only one request, whose response is a stream.

    Only the parsed bytes of a head are cached. The decision whether to serve it is made for each request.
    """

    __slots__ = ("_after", "_before", "_head", "_is_first")

    def __init__(self) -> None:
        self._head: RequestHead | None = None
        self._before = self._after = b""
        """The bytes of the head before and after the digits of its Content-Length."""
        self._is_first = True

    def lookup(self, raw: bytes) -> RequestHead | None:
        """Return the cached request head if ``raw`` contains the same bytes. Otherwise return `None`.

        The digits of the Content-Length may differ.
        """
        head, before, after = self._head, self._before, self._after
        if head is None or not (raw.startswith(before) and raw.endswith(after)):
            return None
        digits = raw[len(before) : len(raw) - len(after)]
        return head.with_length(digits) if digits.isdigit() and len(digits) <= _MOST_DIGITS else None

    def store(self, raw: bytes, head: RequestHead) -> None:
        """Cache ``head``, the result of parsing the valid request head ``raw``."""
        length = None if self._is_first or len(raw) > _LONGEST else _LENGTH.search(raw)
        self._is_first = False
        if length is not None:
            self._head = head.with_length(
                length[1]
            )  # cache a copy, because the application may modify the headers that it receives
            self._before, self._after = raw[: length.start(1)], raw[length.end(1) :]
