"""The command line ``trio-mcp``, and client handlers that ask the user at the terminal. You can also use the handlers
in your own clients.

Needs the extra ``trio-mcp[cli]``. `commands` holds each command in a file of its own, and the modules here hold the
shared parts. The constants here are the exit statuses of the commands that use a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .terminal import terminal_options

__all__ = ["terminal_options"]

ENDED_WELL: Final = 0
TOOL_FAILED: Final = 1
"""Exit status if the tool ran and reported a failure (``isError``)."""
NOT_WRITTEN: Final = 1
"""Exit status if a file was left unchanged, because it contains something else or can't be written."""
USAGE: Final = 2
"""Exit status if the arguments are invalid, or name something that doesn't exist."""
NO_CONNECTION: Final = 3
"""Exit status if the server couldn't be reached or started, or has disconnected."""
SERVER_ERROR: Final = 4
"""Exit status if the server responded with an error, or with a message that the specification doesn't allow."""
OUT_OF_TIME: Final = 5
"""Exit status if the time limit has passed."""
NOT_AUTHORIZED: Final = 6
"""Exit status if the server requires a token, and the token wasn't available or was refused."""
SIGNALLED: Final = 128
"""Base of the exit status of a program ended by a signal. Shells expect this number plus the signal's number."""
INTERRUPTED: Final = SIGNALLED + 2
"""The exit status after Ctrl-C, which is SIGINT."""

# Hide __getattr__ from type checkers: they know the names of this module, and report unknown names.
if not TYPE_CHECKING:
    from ..lazy import lazy_names

    __getattr__, __dir__ = lazy_names(globals(), {".terminal": "terminal_options"})
