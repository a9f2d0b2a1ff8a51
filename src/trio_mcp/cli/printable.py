"""Makes text from servers safe to print on a terminal, including log messages and errors."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Generator
from datetime import UTC, datetime
from typing import IO, Any, Final

import click

from ..concurrency.contexts import contextmanager
from . import USAGE

# Control characters can move the cursor or rename windows. The direction marks in this pattern can reverse text.
_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Escape zero-width characters, which can hide words, and line separators that Python doesn't treat as line ends.
_HIDDEN: Final = re.compile(
    "[\u180e\u200b\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff0-\ufffb\U000e0000-\U000e00ff\U000e01f0-\U000e0fff]"
)
# Some languages and emoji need joining characters, but joining characters can make a name look like another name.
_JOINING: Final = re.compile(
    "[\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u200c\u200d\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)


def printable(text: str) -> str:
    """Return ``text`` with control characters replaced, and invisible characters escaped. Line ends and tabs stay
    unchanged."""
    return _HIDDEN.sub(_escape, _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n")))


def on_one_line(text: str, limit: int = 200) -> str:
    """Return the first line of ``text`` that isn't blank, made printable and truncated to ``limit`` characters."""
    return _cut(next((line.strip() for line in printable(text).splitlines() if line.strip()), ""), limit)


def name_shown(name: str, limit: int = 200) -> str:
    """Return ``name`` with unusual characters escaped, and with at most ``limit`` characters. Names that differ only in
    invisible characters thus look different."""
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in name[: limit + 1])
    return _cut(_JOINING.sub(_escape, shown), limit)


def say(line: str) -> None:
    """Print a message for the user on standard error. If standard error was closed, discard this and all later output
    to it."""
    if _json_lines.is_on:
        record = logging.LogRecord("trio_mcp.cli", logging.INFO, __file__, 0, line, None, None)
        text = _JSONLines().format(record)
    else:
        text = f"trio-mcp: {printable(line)}"
    try:
        print(text, file=sys.stderr, flush=True)
    # Drop the line: another program has made the terminal non-blocking, and the terminal's buffer is full.
    except BlockingIOError:
        pass
    except OSError:  # standard error is a broken pipe, or a terminal that was closed
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)


class CommandError(click.ClickException):
    """The command can't do what the user has typed, although its syntax is valid. The error's message is one line for
    the user."""

    exit_code = USAGE

    def show(self, file: IO[Any] | None = None) -> None:
        """Print this error's message on standard error: see `click.ClickException.show`."""
        say(self.message)

    @classmethod
    @contextmanager
    def instead_of(cls, *kinds: type[Exception], prefix: str = "") -> Generator[None]:
        """Inside the block, raise this error instead of errors of the ``kinds``, with their text after ``prefix``."""
        try:
            yield
        except kinds as error:
            raise cls(f"{prefix}{error}") from None


class CopiedToStderr:
    """A `TextSink` that copies the standard error of a server process to this process's standard error. Text for a
    terminal is made `printable`."""

    def write(self, text: str, /) -> None:
        """Copy ``text``, which the server process has written to its standard error, to this process's standard
        error."""
        sys.stderr.write(printable(text) if sys.stderr.isatty() else text)
        sys.stderr.flush()


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def _cut(line: str, limit: int) -> str:
    return line if len(line) <= limit else line[: limit - 1] + "…"


class _Printable(logging.Formatter):
    """A log formatter that replaces control characters, since log messages contain text from other programs."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


_STANDARD: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""Attributes that every log record has, or that formatters add. All other attributes were added by the code that
logs."""


class _JSONLines(logging.Formatter):
    """A log formatter that writes each record as one JSON object in ASCII.

    It contains ``time``, ``level``, ``logger``, ``message``, ``exception`` if there is one, and extra attributes such
    as the ``status`` of a response.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        more = {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in entry}
        return json.dumps(entry | more, default=str)


class _Switch:
    is_on = False


_json_lines: Final = _Switch()


def write_json_lines() -> None:
    """From now on, write each log message of this package as one line of JSON on standard error."""
    _json_lines.is_on = True


def log_to_stderr(level: str) -> None:
    """Log messages of ``level`` and above to standard error, without control characters. Does nothing if logging is
    already configured."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JSONLines() if _json_lines.is_on else _Printable("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
