"""RequestReader: parses HTTP requests from bytes, without I/O: you feed bytes, and get heads and bodies. llhttp parses
the heads, and further checks apply where llhttp isn't strict enough."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from functools import cache
from http import HTTPStatus
from typing import Final

import httptools

from ...lazy import lazy_pattern
from .application import BadRequest, HttpBounds, RequestHead

_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-\"$-~]+) HTTP/([0-9]\.[0-9])\r\n")
"""Pattern of a request line: RFC 9112 section 3. A target has no fragment (section 3.2)."""
_TOKEN_BEGINS: Final = lazy_pattern(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]")
_ABSOLUTE: Final = lazy_pattern(r"https?://([^/?@]+)(/[^?]*)?", re.IGNORECASE)
"""Pattern of a target in absolute form: RFC 9110 section 4.2. A name before an ``@`` is an error: section 4.2.4."""
_PARSED_AS_THEY_ARE: Final = frozenset(("POST", "GET", "DELETE", "OPTIONS", "HEAD", "PUT", "PATCH"))
_LONGEST_METHOD: Final = 32
_BARE_LF: Final = "a line of the head does not end with CRLF"
"""Error message for a bare LF. RFC 9112 section 2.2 allows servers to accept a bare LF as a line end, but this server
doesn't: if two readers disagree about line ends, one of them finds a request that the other doesn't."""
_NONE_REPEATED: Final = frozenset[str]()
_MOST_KEYS: Final = 200
_LONGEST_KEY: Final = 64
_keys: dict[bytes, str] = {}
"""Cache of header names in lower case, keyed by the received name. Clients repeat the same names."""


class _Fields:
    """Collects the headers that llhttp has parsed."""

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
            text = f"{self.headers[key]}, {text}"  # RFC 9110 section 5.3: join repeated headers
        self.headers[key] = text

    def on_headers_complete(self) -> None:
        self.complete = True


def check_beginning(beginning: bytes, *, is_first: bool) -> None:
    """Raise `BadRequest` if ``beginning`` can't be the beginning of a request head.

    If ``is_first``, it must be the start of a head. So a client that uses another protocol gets a response at once.
    """
    if is_first and not _TOKEN_BEGINS.match(beginning):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is not an HTTP request")
    if beginning.count(b"\n") != beginning.count(b"\r\n"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, _BARE_LF)


def read_head(raw: bytes, bounds: HttpBounds) -> RequestHead:
    """Parse the bytes of a request head, including the empty line at its end. Raises `BadRequest` if the head is
    invalid."""
    lines = raw.count(b"\n")
    if lines != raw.count(b"\r\n"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, _BARE_LF)
    line = _REQUEST_LINE.match(raw)
    if line is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1.1 request line")
    method, target, version = line[1].decode("ascii"), line[2].decode("ascii"), line[3]
    if version != b"1.1" and version != b"1.0":
        raise BadRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "the only supported HTTP versions are 1.1 and 1.0")
    if len(target) > bounds.max_target_bytes:
        raise BadRequest(HTTPStatus.REQUEST_URI_TOO_LONG, f"the URL is longer than {bounds.max_target_bytes} bytes")
    if lines - 2 > bounds.max_headers:
        raise BadRequest(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the request has more than {bounds.max_headers} headers"
        )
    if method not in _PARSED_AS_THEY_ARE:
        if len(method) > _LONGEST_METHOD or method == "CONNECT":
            raise BadRequest(HTTPStatus.NOT_IMPLEMENTED, "this HTTP method is not supported")  # RFC 9112 section 3
        # Parse every head as a GET: llhttp rejects unknown methods, and treats the heads of some methods differently.
        raw = b"GET" + raw[line.end(1) :]
    # Use a new parser for each head, because a reused parser would expect a body first.
    fields = _Fields()
    try:
        httptools.HttpRequestParser(fields).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # llhttp raises `HttpParserUpgrade` for a request to upgrade, but a server may ignore the upgrade
    except httptools.HttpParserError as error:
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"malformed HTTP request: {error}") from None
    if not fields.complete:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "malformed HTTP request")
    headers = fields.headers
    check_headers(headers, fields.repeated, http_1_0=version == b"1.0")
    path = target.partition("?")[0] if target[0] == "/" else _path_of(method, target, headers)
    return RequestHead(method, target, path, headers, fields.repeated, version == b"1.0")


def check_headers(headers: Mapping[str, str], repeated: Set[str], *, http_1_0: bool) -> None:
    """Raise `BadRequest` if ``headers`` are ambiguous about the destination of the request, or the end of its body.

    The headers in ``repeated`` occurred more than once.
    """
    if "transfer-encoding" in headers:
        # RFC 9112 section 6.1: chunked framing is invalid in HTTP/1.0.
        # RFC 9112 section 6.3: chunked framing is invalid together with a Content-Length.
        if http_1_0 or "content-length" in headers:
            raise BadRequest(
                HTTPStatus.BAD_REQUEST,
                "Transfer-Encoding is allowed only in HTTP/1.1, and not together with Content-Length",
            )
        # RFC 9112 section 6.1: an unknown transfer coding is an error
        if headers["transfer-encoding"].lower() != "chunked":
            raise BadRequest(HTTPStatus.NOT_IMPLEMENTED, "the only supported Transfer-Encoding is chunked")
    # RFC 9112 section 3.2
    if not headers.get("host") and (not http_1_0 or "host" in headers):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the Host header is missing or empty")
    if repeated and not repeated.isdisjoint(("host", "content-length")):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the headers Host and Content-Length must not be repeated")


def _path_of(method: str, target: str, headers: dict[str, str]) -> str:
    if target == "*" and method == "OPTIONS":  # RFC 9112 section 3.2.4
        return target
    absolute = _ABSOLUTE.match(target)
    if absolute is None or (absolute.end() < len(target) and target[absolute.end()] != "?"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "invalid request target")
    headers["host"] = absolute[1]  # the host in an absolute URL replaces the Host header (RFC 9112 section 3.2.2)
    return absolute[2] or "/"


_END: Final = b"\r\n\r\n"
_CHUNKED_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})(?![0-9A-Fa-f])[^\r\n]*+\r\n")
"""Pattern of the first line of a chunk (RFC 9112 section 7.1). It also matches some lines that llhttp rejects."""
_LONGEST_SIZE: Final = 4 * 1024
"""Maximum number of bytes of the first line of a chunk, which may have an extension."""


@cache
def _small_chunks() -> re.Pattern[bytes]:
    """Return a regular expression that matches any number of chunks of up to 15 bytes each.

    Skipping them one by one would be expensive, and a client can easily send one byte per chunk.
    """
    extension = rb"(?:[^\r\n0-9A-Fa-f][^\r\n]*+)?+\r\n"
    sizes = b"|".join(b"(?i:%x)%b.{%d}" % (size, extension, size) for size in range(1, 16))
    return re.compile(b"(?:0*+(?:" + sizes + rb")\r\n)*+", re.DOTALL)


class _Pieces:
    """Collects the content of a chunked body that llhttp has parsed. Chunk extensions and trailers are ignored."""

    __slots__ = ("body", "complete", "on_body")

    def __init__(self) -> None:
        self.body = bytearray()
        self.on_body = self.body.extend
        self.complete = False

    def on_message_complete(self) -> None:
        self.complete = True


class _EndOfBody:
    """Finds the end of a chunked body. Only chunk sizes are parsed here, because llhttp reports all other errors."""

    __slots__ = ("_is_last", "_line", "_skip")

    def __init__(self) -> None:
        self._line = b""
        """The beginning of an incomplete size line, or of the empty line after the trailers."""
        self._skip = 0
        """The number of bytes of the current chunk that have not arrived."""
        self._is_last = False
        """Whether the first line of the last chunk was read."""

    def find(self, data: bytes) -> int | None:
        """Return the index in ``data`` at which a chunked request body ends. Return `None` if the body continues after
        ``data``.

        Raises `BadRequest` if a chunk size is invalid.
        """
        before = len(self._line)
        window = self._line + data
        at = self._skip
        small = _small_chunks()
        while at < len(window) and not self._is_last:
            at = small.match(window, at).end()  # pyright: ignore[reportOptionalMemberAccess] matches an empty string, too
            line = _SIZE.match(window, at)
            if line is None:
                break
            size = int(line[1], 16)
            self._is_last = not size
            at = line.end() + size + 2 if size else line.end() - 2
        if self._is_last:
            end = window.find(_END, at)
            if end >= 0:
                return end + len(_END) - before
            at = max(at, len(window) + 1 - len(_END))
        self._skip = max(0, at - len(window))
        self._line = window[at:]
        if len(self._line) > _LONGEST_SIZE:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "malformed chunk: the line with its size is too long")
        return None


class ChunkedBody:
    """Parses a chunked request body as its bytes arrive.

    llhttp doesn't report where a body ends, and would read on. So it gets only the bytes up to the end of the body.
    """

    __slots__ = ("_end", "_framing", "_max_body", "_max_framing", "_parser", "_pieces")

    def __init__(self, bounds: HttpBounds) -> None:
        self._max_body = bounds.max_body_bytes
        self._max_framing = bounds.max_head_bytes + bounds.max_body_bytes // 8
        self._pieces = _Pieces()
        self._parser = httptools.HttpRequestParser(self._pieces)
        self._parser.feed_data(_CHUNKED_HEAD)
        self._end = _EndOfBody()
        self._framing = 0
        """Number of bytes so far that don't belong to the body: sizes of chunks, extensions, line ends, trailers."""

    @property
    def body(self) -> bytes:
        """The content of the body that has arrived so far, without chunk sizes."""
        return bytes(self._pieces.body)

    @property
    def size(self) -> int:
        """The number of bytes of content that have arrived so far."""
        return len(self._pieces.body)

    def feed(self, data: bytes) -> bytes | None:
        """Parse more bytes of the body. If the body ends in ``data``, return the bytes after its end. Otherwise return
        `None`.

        Raises `BadRequest` if the body is malformed or too large.
        """
        end = self._end.find(data)
        self._parse(data[:end])
        if self._pieces.complete != (end is not None):
            raise BadRequest(HTTPStatus.BAD_REQUEST, "malformed chunked body: it's unclear where the body ends")
        return None if end is None else data[end:]

    def _parse(self, data: bytes) -> None:
        body = self._pieces.body
        before = len(body)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadRequest(HTTPStatus.BAD_REQUEST, f"malformed chunk: {error}") from None
        self._framing += len(data) - (len(body) - before)
        if len(body) > self._max_body:
            raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {self._max_body} bytes")
        if self._framing > self._max_framing:
            raise BadRequest(
                HTTPStatus.BAD_REQUEST, "the chunk sizes, chunk extensions and trailers of the body are too long"
            )


_LENGTH: Final = lazy_pattern(rb"\r\ncontent-length: ([0-9]{1,9})\r\n", re.IGNORECASE)
_MOST_DIGITS: Final = 9
_LONGEST_CACHED: Final = 4096
"""Maximum number of bytes of a cached head, because there may be many idle connections."""


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
        return _with_length(head, digits) if digits.isdigit() and len(digits) <= _MOST_DIGITS else None

    def store(self, raw: bytes, head: RequestHead) -> None:
        """Cache ``head``, the result of parsing the valid request head ``raw``."""
        length = None if self._is_first or len(raw) > _LONGEST_CACHED else _LENGTH.search(raw)
        self._is_first = False
        if length is not None:
            # Cache a copy, because the application may modify the headers that it receives.
            self._head = _with_length(head, length[1])
            self._before, self._after = raw[: length.start(1)], raw[length.end(1) :]


def _with_length(head: RequestHead, digits: bytes) -> RequestHead:
    """Return a copy of the request head with another Content-Length, whose value is ``digits``."""
    headers = {**head.headers, "content-length": digits.decode("ascii")}
    return RequestHead(head.method, head.target, head.path, headers, head.repeated, head.http_1_0)


_MOST_EMPTY_LINES: Final = 8
"""Maximum number of empty lines before a request line that are ignored. RFC 9112 section 2.2: a server should ignore at
least one."""


class RequestReader:
    """Parses the HTTP requests that arrive on one connection.

    After each `feed`, call `head` and `body` in turn, until one of them returns `None` because bytes are missing. After
    a `BadRequest`, don't use the reader again.
    """

    __slots__ = (
        *("_bounds", "_checked", "_chunks", "_empty_lines", "_forgotten", "_last_head", "_length", "_part"),
        *("_searched", "is_over", "unread"),
    )

    def __init__(self, bounds: HttpBounds) -> None:
        self._bounds = bounds
        self._last_head = HeadCache()
        self.unread = bytearray()
        """Buffered bytes that aren't part of a parsed head or body."""
        self._searched = 0
        """The number of buffered bytes that were searched for the end of a head."""
        self._checked = 0
        """The number of buffered bytes that were checked to be the beginning of a head."""
        self._empty_lines = 0
        """The number of empty lines before the next head."""
        self._length = 0
        """The length of the body according to its head."""
        self._part: bytearray | None = None
        """The beginning of a body that didn't arrive together with its head."""
        self._chunks: ChunkedBody | None = None
        self.is_over = False
        """Whether `discard` has been called."""
        self._forgotten = 0

    def feed(self, data: bytes) -> None:
        """Add bytes that were received from the client."""
        if self._part is not None:
            self._part += data
        else:
            self.unread += data

    def head(self) -> RequestHead | None:
        """Parse and return the next request head. Return `None` if the head hasn't arrived completely.

        Raises `BadRequest` if the head is invalid or too long.
        """
        data = self.unread
        while data.startswith(b"\r\n") and self._empty_lines < _MOST_EMPTY_LINES:
            self._empty_lines += 1
            del data[:2]
        most = self._bounds.max_head_bytes
        end = data.find(_END, self._searched)
        if end < 0 or end + len(_END) > most:
            self._searched = max(0, len(data) - len(_END) + 1)
            beginning = bytes(data[self._checked : most]).removesuffix(b"\r")
            if beginning:
                check_beginning(beginning, is_first=not self._checked)
                self._checked += len(beginning)
            if end >= 0 or len(data) > most:
                raise _too_long(data, self._bounds)
            return None
        end += len(_END)
        raw = bytes(data[:end])
        del data[:end]
        self._searched = self._checked = self._empty_lines = 0
        head = self._last_head.lookup(raw)
        if head is None:
            head = read_head(raw, self._bounds)
            self._last_head.store(raw, head)
        if "transfer-encoding" in head.headers:
            self._chunks = ChunkedBody(self._bounds)
        else:
            self._length = int(head.headers.get("content-length", 0))
        return head

    def body(self) -> bytes | None:
        """Return the body of the current request. Return `None` if the body hasn't arrived completely.

        Raises `BadRequest` if the body is invalid. A body that is too large is refused before it has arrived.
        """
        if self._chunks is not None:
            return self._chunked(self._chunks)
        length = self._length
        if length > self._bounds.max_body_bytes:
            raise BadRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {self._bounds.max_body_bytes} bytes"
            )
        data = self.unread if self._part is None else self._part
        if len(data) < length:
            if self._part is None:
                self._part, self.unread = data, bytearray()
            return None
        if self._part is None:
            body = bytes(data[:length])
            del data[:length]
        else:  # the body may be large, so copy its bytes only once
            data = data[length:]
            del self._part[length:]
            body = bytes(self._part)
        self._length, self._part, self.unread = 0, None, data
        return body

    @property
    def part(self) -> bytes | bytearray:
        """The part of the current request's body that has arrived so far."""
        if self._chunks is not None:
            return self._chunks.body
        return self.unread if self._part is None else self._part

    @property
    def size(self) -> int:
        """The number of bytes that were received, but not processed yet."""
        part = 0 if self._part is None else len(self._part)
        return len(self.unread) + part + (0 if self._chunks is None else self._chunks.size)

    def discard(self, *, comes: bool = False) -> None:
        """Drop the buffered bytes, and read no more requests. Don't call `feed` afterwards.

        Set ``comes`` if the client will still send the rest of the current body. `missing` then counts the bytes of
        this rest.
        """
        self._forgotten = self.missing if comes else 0
        self.is_over = True
        self.unread, self._part, self._chunks, self._length = bytearray(), None, None, 0

    @property
    def missing(self) -> int:
        """The number of bytes of the current body that haven't arrived. The result is at most
        `HttpBounds.max_dropped_bytes`, because the server reads and drops no more of a refused body.

        This maximum also applies to a chunked body, whose length is unknown.
        """
        if self.is_over:
            return self._forgotten
        most = self._bounds.max_dropped_bytes
        if self._chunks is not None:
            return most
        return min(self._length - len(self.unread if self._part is None else self._part), most)

    def _chunked(self, chunks: ChunkedBody) -> bytes | None:
        data, self.unread = bytes(self.unread), bytearray()
        rest = chunks.feed(data)
        if rest is None:
            return None
        self.unread += rest
        self._chunks = None
        return chunks.body


def _too_long(data: bytearray, bounds: HttpBounds) -> BadRequest:
    if not 0 <= data.find(b"\r\n") <= bounds.max_head_bytes:
        return BadRequest(HTTPStatus.REQUEST_URI_TOO_LONG, f"the URL is longer than {bounds.max_target_bytes} bytes")
    return BadRequest(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the headers are longer than {bounds.max_head_bytes} bytes"
    )
