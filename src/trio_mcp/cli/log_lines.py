"""log_to_stderr: print Python's logging on standard error."""

from __future__ import annotations

import logging

from .terminal.printable import printable


class _Printable(logging.Formatter):
    """A formatter that replaces control characters, since log lines contain text of peers."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_to_stderr(level: str) -> None:
    """Log ``level`` and above, without control characters in the lines. Does nothing if logging is configured
    already."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
