"""Overheard: keeps the standard error of a started server during a request."""

from __future__ import annotations

from typing import Final

from ...transports.process import LastLines
from ..reporting import say

_MOST: Final = 200
_TRACEBACK: Final = "Traceback (most recent call last)"
"""The line with which Python begins a traceback; some servers decorate it."""


class Overheard:
    """A sink that keeps the last 200 lines of the server's standard error since `begin`."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget the lines so far."""
        self._kept = LastLines(most=_MOST)

    def write(self, text: str, /) -> None:
        """Take ``text``: see `TextSink`."""
        self._kept.write(text)

    def say_crash(self) -> None:
        """Show the tracebacks, from the first one on; nothing without a traceback."""
        lines = self._kept.lines
        first = next((number for number, line in enumerate(lines) if _TRACEBACK in line), None)
        if first is not None:
            say("\n  ".join(["the server wrote meanwhile, on stderr:", *lines[max(first - 1, 0) :]]))
