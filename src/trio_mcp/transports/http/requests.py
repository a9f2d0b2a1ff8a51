"""RequestReader: the bytes of a client as requests. No I/O: bytes are fed, heads and bodies are asked for."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from .bounds import HttpBounds
from .chunked import ChunkedBody
from .heads import BadRequest, RequestHead, check_beginning, read_head

_END: Final = b"\r\n\r\n"
_MOST_EMPTY_LINES: Final = 8
"""Empty lines before a request line that are ignored: the one of RFC 9112 section 2.2, and a few."""


class RequestReader:
    """The requests of one connection: `head` and `body` are asked for in turn, after each `feed`, until `None` says
    that bytes are missing. After a `BadRequest`, nothing more can be read."""

    __slots__ = ("_bounds", "_checked", "_chunks", "_empty_lines", "_length", "_part", "_searched", "is_over", "unread")

    def __init__(self, bounds: HttpBounds) -> None:
        self._bounds = bounds
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
        """True after `forget`."""

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
        head = read_head(bytes(data[:end]), self._bounds)
        del data[:end]
        self._searched = self._checked = self._empty_lines = 0
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
        body = bytes(data[:length])
        del data[:length]
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

    def forget(self) -> None:
        """Drop the bytes that wait here: nothing more is to be fed."""
        self.is_over = True
        self.unread, self._part, self._chunks = bytearray(), None, None

    @property
    def missing(self) -> int:
        """The number of bytes, at most, that are to come of the body that belongs to the last head, after `body`."""
        if self._chunks is not None:
            return self._bounds.max_body_bytes
        return self._length - (0 if self._part is None else len(self._part))

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
