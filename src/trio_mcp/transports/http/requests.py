"""RequestReader makes requests of the bytes of a client. A head is read by llhttp, and checked where llhttp is not
strict enough. No I/O: bytes are fed, heads and bodies are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from functools import cache
from http import HTTPStatus
from typing import Final

import httptools

from ...lazy import lazy_pattern
from .heads import BadRequest, HeadCache, HttpBounds, RequestHead

_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-\"$-~]+) HTTP/([0-9]\.[0-9])\r\n")
"""RFC 9112 section 3; a target has no fragment (section 3.2)."""
_TOKEN_BEGINS: Final = lazy_pattern(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]")
_ABSOLUTE: Final = lazy_pattern(r"https?://([^/?@]+)(/[^?]*)?", re.IGNORECASE)
"""RFC 9110 section 4.2; section 4.2.4: a name before an ``@`` is to be treated as an error."""
_PARSED_AS_THEY_ARE: Final = frozenset(("POST", "GET", "DELETE", "OPTIONS", "HEAD", "PUT", "PATCH"))
_LONGEST_METHOD: Final = 32
_BARE_LF: Final = "a line of the head does not end with CRLF"
"""RFC 9112 section 2.2 lets a server take a bare LF for the end of a line. Where two readers of the same bytes disagree
about that, one sees a request that the other does not."""
_NONE_REPEATED: Final = frozenset[str]()
_MOST_KEYS: Final = 200
_LONGEST_KEY: Final = 64
_keys: dict[bytes, str] = {}
"""Names of headers as they came, and in lower case: clients repeat the same ones."""


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
    if beginning.count(b"\n") != beginning.count(b"\r\n"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, _BARE_LF)


def read_head(raw: bytes, bounds: HttpBounds) -> RequestHead:
    """Return the head of a request from its bytes, the empty line included. Raises `BadRequest`."""
    lines = raw.count(b"\n")
    if lines != raw.count(b"\r\n"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, _BARE_LF)
    line = _REQUEST_LINE.match(raw)
    if line is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no request line of HTTP/1.1")
    method, target, version = line[1].decode("ascii"), line[2].decode("ascii"), line[3]
    if version != b"1.1" and version != b"1.0":
        raise BadRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "the versions of HTTP here are 1.1 and 1.0")
    if len(target) > bounds.max_target_bytes:
        raise BadRequest(HTTPStatus.REQUEST_URI_TOO_LONG, f"a target has at most {bounds.max_target_bytes} bytes")
    if lines - 2 > bounds.max_headers:
        raise BadRequest(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request has at most {bounds.max_headers} headers"
        )
    if method not in _PARSED_AS_THEY_ARE:
        if len(method) > _LONGEST_METHOD or method == "CONNECT":
            raise BadRequest(HTTPStatus.NOT_IMPLEMENTED, "there is no such method here")  # RFC 9112 section 3
        # llhttp refuses methods that it does not know, and reads the heads of some in other ways than of others.
        raw = b"GET" + raw[line.end(1) :]
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
    headers = fields.headers
    check_headers(headers, fields.repeated, http_1_0=version == b"1.0")
    path = target.partition("?")[0] if target[0] == "/" else _path_of(method, target, headers)
    return RequestHead(method, target, path, headers, fields.repeated, version == b"1.0")


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


_END: Final = b"\r\n\r\n"
_CHUNKED_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})(?![0-9A-Fa-f])[^\r\n]*+\r\n")
"""The first line of a chunk (RFC 9112 section 7.1), and some lines that llhttp refuses."""
_LONGEST_SIZE: Final = 4 * 1024
"""Bytes of the first line of a chunk, which may have an extension."""


@cache
def _small_chunks() -> re.Pattern[bytes]:
    """Return a pattern for chunks of up to 15 bytes, as many as there are: to pass over each by itself would cost a
    client that sends one byte in each chunk nothing, and us a lot."""
    extension = rb"(?:[^\r\n0-9A-Fa-f][^\r\n]*+)?+\r\n"
    sizes = b"|".join(b"(?i:%x)%b.{%d}" % (size, extension, size) for size in range(1, 16))
    return re.compile(b"(?:0*+(?:" + sizes + rb")\r\n)*+", re.DOTALL)


class _Pieces:
    """Collects the body that llhttp reads. Chunk extensions and trailers are ignored."""

    __slots__ = ("body", "complete", "on_body")

    def __init__(self) -> None:
        self.body = bytearray()
        self.on_body = self.body.extend
        self.complete = False

    def on_message_complete(self) -> None:
        self.complete = True


class _EndOfBody:
    """Finds the byte behind a body in chunks. Only the sizes are read: what is wrong with the rest, llhttp says."""

    __slots__ = ("_is_last", "_line", "_skip")

    def __init__(self) -> None:
        self._line = b""
        """The beginning of a line that is not complete, or of the empty line behind the trailers."""
        self._skip = 0
        """The bytes of the present chunk that are to come."""
        self._is_last = False
        """True behind the first line of the last chunk."""

    def find(self, data: bytes) -> int | None:
        """Return at which byte of ``data`` the body has ended; `None` where more is to come. Raises `BadRequest`."""
        before = len(self._line)
        window = self._line + data
        at = self._skip
        small = _small_chunks()
        while at < len(window) and not self._is_last:
            at = small.match(window, at).end()  # pyright: ignore[reportOptionalMemberAccess] it matches nothing, too
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
            raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no good chunk: its first line is too long")
        return None


class ChunkedBody:
    """A body that comes in chunks.

    llhttp does not say at which byte a body has ended, and would read on. So the parser is given bytes only up to where
    the body ends.
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
        """Bytes so far that are not of the body: sizes of chunks, their extensions, line ends, trailers."""

    @property
    def body(self) -> bytes:
        """The body, as far as it has come."""
        return bytes(self._pieces.body)

    @property
    def size(self) -> int:
        """The length of the body, as far as it has come."""
        return len(self._pieces.body)

    def feed(self, data: bytes) -> bytes | None:
        """Read ``data``. Return the bytes behind the body at its end, and `None` before. Raises `BadRequest`."""
        end = self._end.find(data)
        self._parse(data[:end])
        if self._pieces.complete != (end is not None):
            raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no good chunk: it is not clear where the body ends")
        return None if end is None else data[end:]

    def _parse(self, data: bytes) -> None:
        body = self._pieces.body
        before = len(body)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadRequest(HTTPStatus.BAD_REQUEST, f"this is no good chunk: {error}") from None
        self._framing += len(data) - (len(body) - before)
        if len(body) > self._max_body:
            raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {self._max_body} bytes")
        if self._framing > self._max_framing:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "the chunks of the body have too many bytes beside the body")


_MOST_EMPTY_LINES: Final = 8
"""Empty lines before a request line that are ignored: the one of RFC 9112 section 2.2, and a few."""


class RequestReader:
    """The requests of one connection: `head` and `body` are asked for in turn, after each `feed`, until `None` says
    that bytes are missing. After a `BadRequest`, nothing more can be read."""

    __slots__ = (
        *("_bounds", "_checked", "_chunks", "_empty_lines", "_forgotten", "_last_head", "_length", "_part"),
        *("_searched", "is_over", "unread"),
    )

    def __init__(self, bounds: HttpBounds) -> None:
        self._bounds = bounds
        self._last_head = HeadCache()
        self.unread = bytearray()
        """The bytes that belong to no head and no body yet."""
        self._searched = 0
        """The number of unread bytes in which no head ends."""
        self._checked = 0
        """The number of unread bytes that may begin a head."""
        self._empty_lines = 0
        """The number of empty lines before the next head."""
        self._length = 0
        """The length of the body, as its head gave it."""
        self._part: bytearray | None = None
        """The beginning of a body that did not come with its head."""
        self._chunks: ChunkedBody | None = None
        self.is_over = False
        """True after `discard`."""
        self._forgotten = 0

    def feed(self, data: bytes) -> None:
        """Take bytes that have come."""
        if self._part is not None:
            self._part += data
        else:
            self.unread += data

    def head(self) -> RequestHead | None:
        """Return the next head, if all of it has come. Raises `BadRequest`."""
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
        """Return the body that belongs to the last head, if all of it has come. Raises `BadRequest`: a body that is too
        large is not waited for."""
        if self._chunks is not None:
            return self._chunked(self._chunks)
        length = self._length
        if length > self._bounds.max_body_bytes:
            raise BadRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {self._bounds.max_body_bytes} bytes"
            )
        data = self.unread if self._part is None else self._part
        if len(data) < length:
            if self._part is None:
                self._part, self.unread = data, bytearray()
            return None
        if self._part is None:
            body = bytes(data[:length])
            del data[:length]
        else:  # it may be long, and should be copied once only
            data = data[length:]
            del self._part[length:]
            body = bytes(self._part)
        self._length, self._part, self.unread = 0, None, data
        return body

    @property
    def part(self) -> bytes | bytearray:
        """What has come so far of the body that belongs to the last head."""
        if self._chunks is not None:
            return self._chunks.body
        return self.unread if self._part is None else self._part

    @property
    def size(self) -> int:
        """The number of bytes that wait here."""
        part = 0 if self._part is None else len(self._part)
        return len(self.unread) + part + (0 if self._chunks is None else self._chunks.size)

    def discard(self, *, comes: bool = False) -> None:
        """Drop the waiting bytes; don't feed any more. ``comes``: the client still sends the rest of the body, and
        `missing` counts it."""
        self._forgotten = self.missing if comes else 0
        self.is_over = True
        self.unread, self._part, self._chunks, self._length = bytearray(), None, None, 0

    @property
    def missing(self) -> int:
        """Number of bytes after `body` that are still to come and worth reading, of the body for the last head. At most
        `HttpBounds.max_dropped_bytes`, which is also the value for a body in chunks, whose length is unknown."""
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
        return BadRequest(HTTPStatus.REQUEST_URI_TOO_LONG, f"a target has at most {bounds.max_target_bytes} bytes")
    return BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head has at most {bounds.max_head_bytes} bytes")
