"""The bytes of a response: status line, Date, length or chunks, written by hand."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from .application import Answer

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
_CLOSE: Final = b"Connection: close\r\n"


class _Beginnings:
    """The first lines of responses by their status, for the present second."""

    def __init__(self) -> None:
        self._second = 0
        self._lines: dict[int, bytes] = {}

    def of(self, status: int) -> bytes:
        """Return the status line and the Date header."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._lines.clear()
        lines = self._lines.get(status)
        if lines is None:
            try:
                phrase = HTTPStatus(status).phrase
            except ValueError:  # RFC 9112 section 4: the phrase may be empty
                phrase = ""
            date = formatdate(second, usegmt=True)  # RFC 9110 section 6.6.1
            lines = self._lines[status] = f"HTTP/1.1 {status} {phrase}\r\nDate: {date}\r\n".encode("ascii")
        return lines


_beginning = _Beginnings().of


def answer_bytes(answer: Answer, *, close: bool, has_body: bool) -> bytes:
    """Return all bytes of ``answer``. Without ``has_body``, as for HEAD, its body is counted, but not sent."""
    body = answer.body
    # RFC 9110 section 8.6: no Content-Length in a 204; section 15.4.5: a 304 has no body
    length = b"" if answer.status in (204, 304) else b"Content-Length: %d\r\n" % len(body)
    if not has_body or not length:
        body = b""
    return b"".join((_beginning(answer.status), answer.headers, length, _CLOSE if close else b"", b"\r\n", body))


def stream_head(status: int, headers: bytes, *, chunked: bool, close: bool) -> bytes:
    """Return the head of a response whose body follows in chunks, or else until the connection is closed."""
    framing = b"Transfer-Encoding: chunked\r\n" if chunked else b""
    return b"".join((_beginning(status), headers, framing, _CLOSE if close else b"", b"\r\n"))


def chunk(data: bytes | bytearray) -> bytes:
    """Return ``data``, which is not empty, as a chunk (RFC 9112 section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)
