"""Texts: what a record of the log says, of bounded length."""

from __future__ import annotations

import logging
from typing import Final

LONGEST: Final = 10_000
"""Longest message, and longest traceback, in characters. Of longer ones the beginning and the end are kept."""

_FORMATTER: Final = logging.Formatter()


def message_of(record: logging.LogRecord) -> str:
    """Return the message of ``record``, or its format string if formatting fails."""
    try:
        return record.getMessage()
    except Exception:  # whatever the values raise; the handlers of the log report it
        return str(record.msg)


def bound(record: logging.LogRecord) -> None:
    """Cut the message and the traceback of ``record`` where they are longer than `LONGEST`."""
    message = message_of(record)
    if len(message) > LONGEST:
        record.msg, record.args = _cut(message), None
    if record.exc_info and not record.exc_text:
        text = _FORMATTER.formatException(record.exc_info)
        if len(text) > LONGEST:
            # Formatters take this for the text that they made of the exception before, and use it.
            record.exc_text = _cut(text)


def resolve(record: logging.LogRecord, *, keep_exception: bool) -> int:
    """Replace the objects in ``record`` by their texts, so that the record keeps no object alive; return the length of
    the texts. ``keep_exception`` leaves the exception for handlers that use more than its text."""
    bound(record)
    record.msg, record.args = message_of(record), None
    if record.exc_info and not record.exc_text and not keep_exception:
        record.exc_text = _FORMATTER.formatException(record.exc_info)
    if not keep_exception:
        record.exc_info = None
    return len(record.msg) + len(record.exc_text or "")


def _cut(text: str) -> str:
    half = LONGEST // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters are left out here …\n{text[-half:]}"
