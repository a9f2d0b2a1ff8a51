"""The head of an HTTP request is read by llhttp, and checked where llhttp is not strict enough. `HttpBounds` says how
much a client may send, and how long that may take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from http import HTTPStatus
from typing import Final

import attrs
import httptools

_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-\"$-~]+) HTTP/([0-9]\.[0-9])\r\n")
"""RFC 9112 section 3; a target has no fragment (section 3.2)."""
_TOKEN_BEGINS: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]")
_ABSOLUTE: Final = re.compile(r"https?://([^/?@]+)(/[^?]*)?", re.IGNORECASE)
"""RFC 9110 section 4.2; section 4.2.4: a name before an ``@`` is to be treated as an error."""
_WEBSOCKET: Final = re.compile(r"(?:^|,)[ \t]*+websocket[ \t]*+(?:,|$)", re.IGNORECASE | re.ASCII)
_CLOSE: Final = re.compile(r"(?:^|,)[ \t]*+close[ \t]*+(?:,|$)", re.IGNORECASE | re.ASCII)
"""Elements of a header that is a list (RFC 9110 section 5.6.1)."""
_PARSED_AS_THEY_ARE: Final = frozenset(("POST", "GET", "DELETE", "OPTIONS", "HEAD", "PUT", "PATCH"))
_LONGEST_METHOD: Final = 32
_NONE_REPEATED: Final = frozenset[str]()
_MOST_KEYS: Final = 200
_LONGEST_KEY: Final = 64
_keys: dict[bytes, str] = {}
"""Names of headers as they came, and in lower case: clients repeat the same ones."""


class BadRequest(Exception):
    """The request is refused with ``status``, and the connection ends: where the next request begins is unknown."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@attrs.define(eq=False)
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

    @property
    def asks_for_websocket(self) -> bool:
        """True for a request to go on as a WebSocket."""
        upgrade = self.headers.get("upgrade")
        return (
            upgrade is not None
            and self.method == "GET"
            and not self.http_1_0  # RFC 9110 section 7.8
            and _WEBSOCKET.search(upgrade) is not None
        )

    @property
    def is_last(self) -> bool:
        """True when the client sends no other request on the connection (RFC 9112 section 9.6)."""
        connection = self.headers.get("connection")
        return self.http_1_0 or (
            connection is not None and connection != "keep-alive" and _CLOSE.search(connection) is not None
        )

    def waits_for_continue(self) -> bool:
        """Return whether the client waits to be asked for the body. Raises `BadRequest` for any other expectation."""
        expected = self.headers.get("expect")
        if expected is None or self.http_1_0:  # RFC 9110 section 10.1.1
            return False
        if expected.lower() != "100-continue":
            raise BadRequest(HTTPStatus.EXPECTATION_FAILED, "the only expectation here is 100-continue")
        return True


class _Fields:
    """Collects the headers that llhttp reads."""

    __slots__ = ("complete", "headers", "repeated")

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.repeated = _NONE_REPEATED
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        key = _keys.get(name)
        if key is None:
            key = name.lower().decode("ascii")
            if len(_keys) < _MOST_KEYS and len(key) <= _LONGEST_KEY:
                _keys[name] = key
        text = value.strip(b" \t").decode("latin-1")
        if key in self.headers:
            self.repeated |= {key}
            text = f"{self.headers[key]}, {text}"  # RFC 9110 section 5.3
        self.headers[key] = text

    def on_headers_complete(self) -> None:
        self.complete = True


def check_beginning(beginning: bytes, *, is_first: bool) -> None:
    """Raise `BadRequest` when ``beginning`` is no part of a head, whose beginning it is if ``is_first``: a client that
    speaks another protocol should not have to wait for its answer."""
    if is_first and not _TOKEN_BEGINS.match(beginning):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no HTTP request")
    _check_line_ends(beginning)


def _check_line_ends(beginning: bytes) -> None:
    # RFC 9112 section 2.2 lets a server take a bare LF for the end of a line. Where two readers of the same bytes
    # disagree about that, one sees a request that the other does not.
    if beginning.count(b"\n") != beginning.count(b"\r\n"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "a line of the head does not end with CRLF")


def read_head(raw: bytes, bounds: HttpBounds) -> RequestHead:
    """Return the head of a request from its bytes, the empty line included. Raises `BadRequest`."""
    _check_line_ends(raw)
    line = _REQUEST_LINE.match(raw)
    if line is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no request line of HTTP/1.1")
    method, target, version = line[1].decode("ascii"), line[2].decode("ascii"), line[3]
    if version != b"1.1" and version != b"1.0":
        raise BadRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "the versions of HTTP here are 1.1 and 1.0")
    if len(target) > bounds.max_target_bytes:
        raise BadRequest(HTTPStatus.REQUEST_URI_TOO_LONG, f"a target has at most {bounds.max_target_bytes} bytes")
    if raw.count(b"\n") - 2 > bounds.max_headers:
        raise BadRequest(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request has at most {bounds.max_headers} headers"
        )
    if method in _PARSED_AS_THEY_ARE:
        fields = _parsed(raw)
    elif len(method) <= _LONGEST_METHOD and method != "CONNECT":
        # llhttp refuses methods that it does not know, and reads the heads of some in other ways than of others.
        fields = _parsed(b"GET" + raw[line.end(1) :])
    else:
        raise BadRequest(HTTPStatus.NOT_IMPLEMENTED, "there is no such method here")  # RFC 9112 section 3
    headers = fields.headers
    check_headers(headers, fields.repeated, http_1_0=version == b"1.0")
    path = target.partition("?")[0] if target[0] == "/" else _path_of(method, target, headers)
    return RequestHead(method, target, path, headers, fields.repeated, version == b"1.0")


def _parsed(raw: bytes) -> _Fields:
    # A parser and a head live and die together: a parser that were used again would expect the body first.
    fields = _Fields()
    try:
        httptools.HttpRequestParser(fields).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # raised at the end of a head that asks for an upgrade, which a server may ignore (RFC 9110 section 7.8)
    except httptools.HttpParserError as error:
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"this is no good HTTP request: {error}") from None
    if not fields.complete:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no good HTTP request")
    return fields


def check_headers(headers: Mapping[str, str], repeated: Set[str], *, http_1_0: bool) -> None:
    """Raise `BadRequest` when ``headers``, of which those in ``repeated`` came more than once, leave it open to whom a
    request goes or where the body ends."""
    if "transfer-encoding" in headers:
        # RFC 9112 section 6.1: in HTTP/1.0 the framing is faulty; section 6.3: so it is beside a Content-Length.
        if http_1_0 or "content-length" in headers:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a Transfer-Encoding comes in HTTP/1.1 and without Content-Length")
        # RFC 9112 section 6.1: a coding that is not understood
        if headers["transfer-encoding"].lower() != "chunked":
            raise BadRequest(HTTPStatus.NOT_IMPLEMENTED, "the only Transfer-Encoding here is chunked")
    # RFC 9112 section 3.2
    if not headers.get("host") and (not http_1_0 or "host" in headers):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the Host header is missing or empty")
    if repeated and not repeated.isdisjoint(("host", "content-length")):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the headers Host and Content-Length come once")


def _path_of(method: str, target: str, headers: dict[str, str]) -> str:
    if target == "*" and method == "OPTIONS":  # RFC 9112 section 3.2.4
        return target
    absolute = _ABSOLUTE.match(target)
    if absolute is None or (absolute.end() < len(target) and target[absolute.end()] != "?"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no target of a request")
    headers["host"] = absolute[1]  # RFC 9112 section 3.2.2: the Host header is ignored
    return absolute[2] or "/"


@attrs.frozen
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
    max_linger_bytes: int = 1024 * 1024
    """Bytes that are read, and dropped, behind the last answer. A connection that is closed with unread bytes is reset,
    and its client might never see that answer. Behind a refusal by the head, what is missing of a body that would have
    been read is dropped first, within `body_timeout`."""
