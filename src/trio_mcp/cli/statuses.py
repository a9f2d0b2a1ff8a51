"""Exit statuses of the commands that use a server."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ENDED_WELL",
    "INTERRUPTED",
    "NOT_WRITTEN",
    "NO_CONNECTION",
    "OUT_OF_TIME",
    "SERVER_ERROR",
    "SIGNALLED",
    "TOOL_FAILED",
    "USAGE",
]

ENDED_WELL: Final = 0
TOOL_FAILED: Final = 1
"""The tool ran and said that it failed (``isError``)."""
NOT_WRITTEN: Final = 1
"""A file was left as it is: it holds something else, or cannot be written."""
USAGE: Final = 2
"""What was typed cannot be meant, or names nothing that there is."""
NO_CONNECTION: Final = 3
"""The server could not be reached or started, or is gone."""
SERVER_ERROR: Final = 4
"""The server answered with an error, or with what the specification does not allow."""
OUT_OF_TIME: Final = 5
"""The time limit passed."""
SIGNALLED: Final = 128
"""What shells expect of a program that a signal ended: this and the signal's number."""
INTERRUPTED: Final = SIGNALLED + 2
"""Ctrl-C, which is SIGINT."""
