"""RequestHead is what the head of a request says, and HeadCache remembers how the last head of a connection was read.
Clients send the same head with each request, but for the length of the body.

`HttpBounds` says how much a client may send, and how long that may take. `BadRequest` refuses a request that is too
much, or none.
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
"""Elements of a header that is a list (RFC 9110 section 5.6.1)."""
_LONGEST_LIST: Final = 1000
"""Maximum characters that are read of such a header: a search tries each comma."""
_LENGTH: Final = lazy_pattern(rb"\r\ncontent-length: ([0-9]{1,9})\r\n", re.IGNORECASE)
_MOST_DIGITS: Final = 9
_LONGEST: Final = 4096
"""Maximum bytes of a head that is remembered, since idle connections are many."""


class BadRequest(Exception):
    """The request is refused with ``status``, and the connection ends: where the next request begins is unknown."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@frozen
class HttpBounds:
    """The bounds of a connection. Times are in seconds, as exact as `HttpConnection.tick` is called often."""

    max_head_bytes: int = 16 * 1024
    """Bytes from the request line to the empty line behind the headers."""
    max_target_bytes: int = 8 * 1024
    max_headers: int = 100
    max_body_bytes: int = 4 * 1024 * 1024
    max_unserved_bytes: int = 64 * 1024
    """Bytes behind a head from which reading pauses, while the application decides by that head alone."""
    max_pipelined_bytes: int = 1024 * 1024
    """Bytes behind a request in service that are read ahead. Reading never pauses there, since the end of a connection
    comes behind all that was sent; with more bytes, the connection ends."""
    head_timeout: float = 10.0
    """Time from the first byte of a head to its last, and, for the first head, from the begin of the connection."""
    body_timeout: float = 60.0
    """Time from the last byte of a head to the last byte of the body."""
    idle_timeout: float = 75.0
    """Time between requests."""
    write_timeout: float = 30.0
    """Time in which a client that has bytes to read must take some."""
    linger_timeout: float = 2.0
    """Time that a client has to read the last answer."""
    max_dropped_bytes: int = 64 * 1024 * 1024
    """Bytes of the rest of a refused body that are read and dropped, within `body_timeout`. Most clients write the
    whole body before they read, and would lose the answer if the connection were reset. A body that is too large has
    `linger_timeout` between two pieces."""
    max_linger_bytes: int = 1024 * 1024
    """Bytes that are read and dropped after the last answer. A connection that is closed with unread bytes is reset,
    and its client might never see that answer. The rest of a refused body is dropped earlier: see
    `max_dropped_bytes`."""


@define(eq=False)
class RequestHead:
    """The request line and the headers of a request."""

    method: str
    target: str = attrs.field(repr=False)
    path: str
    """The target without its query, as it came, with nothing decoded. A target in absolute form is reduced to its path,
    and its authority is the ``host`` of `headers`."""
    headers: dict[str, str] = attrs.field(repr=False)
    """Values by name in lower case, in Latin-1, without the blanks around them. The values of a repeated header are
    joined with commas."""
    repeated: frozenset[str]
    """Names that came more than once."""
    http_1_0: bool
    accepts: str | None = None
    """The only type of answer that the client accepts, as the application has found; `None` for any."""

    def with_length(self, digits: bytes) -> RequestHead:
        """Return the same head of a body of another length."""
        headers = {**self.headers, "content-length": digits.decode("ascii")}
        return RequestHead(self.method, self.target, self.path, headers, self.repeated, self.http_1_0)

    @property
    def asks_for_websocket(self) -> bool:
        """True for a request to go on as a WebSocket."""
        upgrade = self.headers.get("upgrade")
        return (
            upgrade is not None
            and self.method == "GET"
            and not self.http_1_0  # RFC 9110 section 7.8
            and _WEBSOCKET.search(upgrade, 0, _LONGEST_LIST) is not None
        )

    @property
    def is_last(self) -> bool:
        """True when the client sends no other request on the connection (RFC 9112 section 9.6)."""
        connection = self.headers.get("connection")
        return self.http_1_0 or (
            connection is not None
            and connection != "keep-alive"
            and _CLOSE.search(connection, 0, _LONGEST_LIST) is not None
        )

    def waits_for_continue(self) -> bool:
        """Return whether the client waits to be asked for the body. Raises `BadRequest` for any other expectation."""
        expected = self.headers.get("expect")
        if expected is None or self.http_1_0:  # RFC 9110 section 10.1.1
            return False
        if expected.lower() != "100-continue":
            raise BadRequest(HTTPStatus.EXPECTATION_FAILED, "the only expectation here is 100-continue")
        return True


class HeadCache:
    """The last head of one connection. The first one isn't remembered: a stream is the only request of its connection.

    Only what the bytes of a head mean is remembered. Whether its request is served is decided for each request.
    """

    __slots__ = ("_after", "_before", "_head", "_is_first")

    def __init__(self) -> None:
        self._head: RequestHead | None = None
        self._before = self._after = b""
        """The bytes of the head before and after the digits of its Content-Length."""
        self._is_first = True

    def lookup(self, raw: bytes) -> RequestHead | None:
        """Return the head that ``raw`` is, if it differs from the last head in nothing but the digits of its
        Content-Length."""
        head, before, after = self._head, self._before, self._after
        if head is None or not (raw.startswith(before) and raw.endswith(after)):
            return None
        digits = raw[len(before) : len(raw) - len(after)]
        return head.with_length(digits) if digits.isdigit() and len(digits) <= _MOST_DIGITS else None

    def store(self, raw: bytes, head: RequestHead) -> None:
        """Remember ``head``, which was read from ``raw`` and is valid."""
        length = None if self._is_first or len(raw) > _LONGEST else _LENGTH.search(raw)
        self._is_first = False
        if length is not None:
            self._head = head.with_length(length[1])  # a route may change the headers that it was given
            self._before, self._after = raw[: length.start(1)], raw[length.end(1) :]
