"""LastLines: keeps the end of a text that is written to it, to explain what went wrong."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

__all__ = ["LastLines", "TextSink"]

_LINES: Final = 20
_LENGTH: Final = 500


class TextSink(Protocol):
    """Any object that text can be written to. It needs no file descriptor."""

    def write(self, text: str, /) -> object:
        """Take ``text``."""


class LastLines:
    """Keep the last ``most`` lines written to it, 500 characters of each; blank lines are skipped.

    ``copy`` gets all of the text. An exception of ``copy`` leaves `write`, which has kept the lines by then.
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
                self._whole.append(line[:_LENGTH])
        self._rest = rest[:_LENGTH]
        if self._copy is not None:
            self._copy.write(text)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, oldest first, with an unfinished one at the end."""
        rest = self._rest.rstrip()
        return (*self._whole, rest)[-self._most :] if rest else tuple(self._whole)
