"""Endings: how commands that use a server end, as exit statuses and as sentences."""

from __future__ import annotations

import sys
from typing import Final

import trio

from ..jsonrpc.errors import CodedError, MCPError, PeerError, ProtocolViolation
from ..runtime.channel import ConnectionLost
from .plain import printable

__all__ = [
    "ENDED_WELL",
    "NO_CONNECTION",
    "OUT_OF_TIME",
    "SERVER_ERROR",
    "TOOL_FAILED",
    "USAGE",
    "WITH_SERVER",
    "say",
    "say_error",
]

ENDED_WELL: Final = 0
TOOL_FAILED: Final = 1
"""The tool ran and said that it failed (``isError``)."""
USAGE: Final = 2
"""What was typed cannot be meant, or names nothing that there is."""
NO_CONNECTION: Final = 3
"""The server could not be reached or started, or is gone."""
SERVER_ERROR: Final = 4
"""The server answered with an error, or with what the specification does not allow."""
OUT_OF_TIME: Final = 5
"""The time limit passed."""

WITH_SERVER: Final = (MCPError, trio.TooSlowError)
"""What using a server raises, for `say_error`."""


def say(line: str) -> None:
    """One sentence for the user, on standard error."""
    print(f"trio-mcp: {printable(line)}", file=sys.stderr)


def say_error(error: Exception) -> int:
    """Say what went wrong with the server; the exit status for it."""
    match error:
        case trio.TooSlowError():
            say("the server did not answer in time")
            return OUT_OF_TIME
        case ConnectionLost():
            say(str(error))
            return NO_CONNECTION
        case PeerError() | CodedError():
            say(f"the server answered with an error: {error.message} (code {error.code})")
            return SERVER_ERROR
        case ProtocolViolation():
            say(f"the server does not keep to the protocol: {error}")
            return SERVER_ERROR
        case _:
            say(str(error))
            return SERVER_ERROR
