"""ChunkedBody reads a body that comes in chunks, by llhttp."""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from typing import Final

import httptools

from .bounds import BadRequest, HttpBounds

_END: Final = b"\r\n\r\n"
_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
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
        self._parser.feed_data(_HEAD)
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
