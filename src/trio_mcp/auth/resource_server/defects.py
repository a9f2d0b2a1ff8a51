"""log_defect tells the log that a function of the author has failed."""

from __future__ import annotations

import logging
import traceback

logger = logging.getLogger("trio_mcp")


def log_defect(what: str, error: Exception, token: str) -> None:
    """Log ``error`` with its traceback, in which ``token`` does not stand: authors put values into their errors."""
    text = "".join(traceback.format_exception(error))
    if token in text:
        logger.error("%s\n%s", what, text.replace(token, "<token>").rstrip())
    else:
        logger.error("%s", what, exc_info=error)
