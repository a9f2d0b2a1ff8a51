"""log_to_stderr: print Python's logging on standard error."""

from __future__ import annotations

import logging

from .terminal.printable import printable

__all__ = ["log_to_stderr"]


class _Printable(logging.Formatter):
    """A formatter that replaces characters a terminal would obey, since log lines contain what peers send."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_to_stderr(level: str) -> None:
    """Log ``level`` and above, with nothing in the lines that a terminal would obey. Does nothing where logging is set
    up already."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
