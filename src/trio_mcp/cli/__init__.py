"""The command line, and the handlers for questions at the terminal, which hosts of your own can use.

Needs the extra ``trio-mcp[cli]``. `commands` holds each command in a file of its own, and the modules here hold the
shared parts. The constants here are the exit statuses of the commands that use a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .questions import terminal_options

__all__ = ["terminal_options"]

ENDED_WELL: Final = 0
TOOL_FAILED: Final = 1
"""The tool ran and reported a failure (``isError``)."""
NOT_WRITTEN: Final = 1
"""A file was left unchanged, because it contains something else or can't be written."""
USAGE: Final = 2
"""The arguments are invalid, or name something that doesn't exist."""
NO_CONNECTION: Final = 3
"""The server couldn't be reached or started, or has disconnected."""
SERVER_ERROR: Final = 4
"""The server responded with an error, or with a message that the specification doesn't allow."""
OUT_OF_TIME: Final = 5
"""The time limit passed."""
NOT_AUTHORIZED: Final = 6
"""The server requires a token, which wasn't available or was refused."""
SIGNALLED: Final = 128
"""Added to a signal's number, this is the exit status that shells expect of a program ended by the signal."""
INTERRUPTED: Final = SIGNALLED + 2
"""The exit status after Ctrl-C, which is SIGINT."""

if not TYPE_CHECKING:  # type checkers know the names, and report others
    from ..lazy import lazy_names

    __getattr__, __dir__ = lazy_names(globals(), {".questions": "terminal_options"})
