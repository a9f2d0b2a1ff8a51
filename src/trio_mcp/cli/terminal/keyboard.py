"""read_line: wait for a line that the user types."""

from __future__ import annotations

import os
import sys
import termios

import trio


async def read_line() -> str:
    """Return a line from the terminal, empty at its end (Ctrl-D). Waits without a thread, so that Ctrl-C can end it: a
    terminal is readable when a line is complete."""
    await trio.lowlevel.wait_readable(sys.stdin.fileno())
    return os.read(sys.stdin.fileno(), 4096).decode(errors="replace")


def forget_typed() -> None:
    """Drop characters typed before the question, since they were not meant as an answer."""
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
