"""Overheard: what a server that we started wrote to standard error in the course of a request."""

from __future__ import annotations

from typing import Final

from ..transports.last_lines import LastLines
from .endings import say

__all__ = ["Overheard"]

_MOST: Final = 200
_TRACEBACK: Final = "Traceback (most recent call last)"
"""As Python writes it, and as servers do that decorate it."""


class Overheard:
    """A sink keeps the last 200 lines of the server's standard error since `begin`."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was written so far."""
        self._kept = LastLines(most=_MOST)

    def write(self, text: str, /) -> None:
        """Take ``text``. See `TextSink`."""
        self._kept.write(text)

    def say_crash(self) -> None:
        """Show the tracebacks that were written, from the first one on; nothing where there are none."""
        lines = self._kept.lines
        first = next((number for number, line in enumerate(lines) if _TRACEBACK in line), None)
        if first is not None:
            say("\n  ".join(["the server wrote meanwhile, on stderr:", *lines[max(first - 1, 0) :]]))
