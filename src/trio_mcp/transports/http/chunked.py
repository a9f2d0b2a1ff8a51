"""ChunkedBody: the body of a request in chunks, read by llhttp."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import httptools

from .bounds import HttpBounds
from .heads import BadRequest

__all__ = ["ChunkedBody"]

_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
_LAST: Final = b"\r\n\r\n"
"""The last bytes of every chunked body (RFC 9112 section 7.1)."""


class _Pieces:
    """Collects the body that llhttp reads. Chunk extensions and trailers are ignored."""

    __slots__ = ("body", "complete")

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.complete = True


class ChunkedBody:
    """A body that comes in chunks.

    llhttp does not say at which byte a body has ended, and would read on. So the parser is given bytes only up to where
    the body could end, that is behind each empty line, and is asked each time.
    """

    __slots__ = ("_framing", "_max_body", "_max_framing", "_parser", "_pieces", "_tail")

    def __init__(self, bounds: HttpBounds) -> None:
        self._max_body = bounds.max_body_bytes
        self._max_framing = bounds.max_head_bytes + bounds.max_body_bytes // 8
        self._pieces = _Pieces()
        self._parser = httptools.HttpRequestParser(self._pieces)
        self._parser.feed_data(_HEAD)
        self._framing = 0
        """Bytes so far that are not of the body: sizes of chunks, their extensions, line ends, trailers."""
        self._tail = b""
        """The last bytes of those fed, in which an empty line may have begun."""

    @property
    def body(self) -> bytes:
        """The body, as far as it has come."""
        return bytes(self._pieces.body)

    def feed(self, data: bytes) -> bytes | None:
        """Read ``data``. Return the bytes behind the body at its end, and `None` before. Raises `BadRequest`."""
        fed, before = 0, len(self._tail)
        window = self._tail + data
        at = window.find(_LAST)
        while at >= 0:
            end = at + len(_LAST) - before
            self._parse(data[fed:end])
            fed = end
            if self._pieces.complete:
                return data[fed:]
            at = window.find(_LAST, at + 1)
        self._parse(data[fed:])
        self._tail = window[1 - len(_LAST) :]
        return None

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
