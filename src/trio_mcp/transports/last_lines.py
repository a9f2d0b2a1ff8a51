"""LastLines: keeps the last lines of a text, to explain a failure."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from ..jsonrpc.words import clean

_LINES: Final = 20
_LENGTH: Final = 500


class TextSink(Protocol):
    """Any object with a method to write text. No file descriptor is needed."""

    def write(self, text: str, /) -> object:
        """Take ``text``."""


class LastLines:
    """Keep the last ``most`` lines of the written text, 500 characters of each, without control characters; blank lines
    are skipped.

    ``copy`` gets all of the text. `write` raises the exceptions of ``copy``, after keeping the lines.
    """

    def __init__(self, copy: TextSink | None = None, *, most: int = _LINES) -> None:
        self._copy = copy
        self._most = most
        self._whole: deque[str] = deque(maxlen=most)
        self._rest = ""

    def write(self, text: str, /) -> None:
        """Take ``text``, which may end inside a line."""
        *lines, rest = (self._rest + text).split("\n")
        for line in lines[-self._most :]:
            if line := line.rstrip():
                self._whole.append(clean(line[:_LENGTH]))
        self._rest = rest[:_LENGTH]
        if self._copy is not None:
            self._copy.write(text)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, oldest first, with an unfinished one at the end."""
        rest = clean(self._rest.rstrip())
        return (*self._whole, rest)[-self._most :] if rest else tuple(self._whole)
