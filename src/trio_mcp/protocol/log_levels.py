"""The eight log levels of RFC 5424 and when a message passes."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class LogLevel(StrEnum):
    """Severity, least first (RFC 5424, section 6.2.1)."""

    DEBUG = "debug"
    INFO = "info"
    NOTICE = "notice"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"
    ALERT = "alert"
    EMERGENCY = "emergency"


DEFAULT_LOG_LEVEL: Final = LogLevel.INFO
"""Least severe level on a legacy connection before any ``logging/setLevel``; servers are free to choose it."""

_RANKS: Final[dict[str, int]] = {level.value: rank for rank, level in enumerate(LogLevel)}


def log_level_rank(level: str) -> int:
    """Return 0 for debug to 7 for emergency, -1 for a level that RFC 5424 does not know."""
    return _RANKS.get(level, -1)


def should_log(level: str, minimum: str) -> bool:
    """Return whether a message of ``level`` passes ``minimum``.

    Fails open: an unknown level always passes, and an unknown minimum admits everything, so that a custom
    level is never lost in silence. Levels that arrive from the wire are checked strictly, elsewhere.
    """
    rank = log_level_rank(level)
    return rank < 0 or rank >= log_level_rank(minimum)
