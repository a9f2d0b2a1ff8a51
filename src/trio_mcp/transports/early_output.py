"""The output of a child before the connection is open, where it may print other text among its messages."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Final

import trio

_AFTER_TEXT: Final = re.compile(
    rb'^([^{\n]++)(?=\{\s*"(?:jsonrpc|id|result|error)"(?![^\n]*"method")[^\n]*\}\r?\n)', re.MULTILINE
)
"""Text without a line end before an answer. Other messages may be copies in the log of the child."""


class EarlyOutput(trio.abc.ReceiveStream):
    """The stream ``source``. ``sink`` gets its text, and an answer after text on the same line gets its own line."""

    def __init__(self, source: trio.abc.ReceiveStream, sink: Callable[[str], object]) -> None:
        self._source = source
        self._sink = sink
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._in_text = self._in_message = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive: see `trio.abc.ReceiveStream.receive_some`."""
        data = await self._source.receive_some(max_bytes)
        self._sink(self._text.decode(data))
        if not data:
            return data
        data = _AFTER_TEXT.sub(rb"\1\n", b" " + data if self._in_text else data)
        _, newline, rest = data.rpartition(b"\n")
        self._in_message = b"{" in rest or (self._in_message and not newline)
        self._in_text = bool(rest) and not self._in_message
        return data

    async def aclose(self) -> None:
        """Close the stream."""
        await self._source.aclose()
