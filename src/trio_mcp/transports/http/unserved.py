"""UnservedBody keeps what tells whose answer a body was that the server refuses."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from .heads import RequestHead

_KEPT: Final = 65536
"""Bytes that are kept of the beginning, and of the end."""
_MOST_DIGITS: Final = 20


class UnservedBody:
    """The beginning and the end of the body of a request of ``caller``, who was admitted by ``head``, but whose body
    was refused with ``status`` for ``reason``. ``part`` is what had come of the body by then."""

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
        """The length of the body; `None` where nobody knows it beforehand."""

    def feed(self, data: bytes) -> None:
        """Take more of the body, as it comes and is dropped."""
        if self._length is None:
            return
        data = data[: self._length - self._came]
        self._came += len(data)
        self.beginning += data[: _KEPT - len(self.beginning)]
        self._end += data[-_KEPT:]
        del self._end[:-_KEPT]

    @property
    def end(self) -> bytes:
        """The last bytes of the body; empty where they have not come."""
        return bytes(self._end) if self._came == self._length else b""


def _length_of(head: RequestHead) -> int | None:
    told = head.headers.get("content-length", "")
    is_number = told.isascii() and told.isdecimal() and len(told) <= _MOST_DIGITS
    # What follows on a part of a body in chunks is not the body alone.
    return int(told) if is_number and "transfer-encoding" not in head.headers else None
