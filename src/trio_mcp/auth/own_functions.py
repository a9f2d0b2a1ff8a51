"""telling makes an `AuthorizationError` of what a function of the user raises."""

from __future__ import annotations

import logging
from collections.abc import Generator

from ..concurrency.contexts import contextmanager
from .errors import AuthorizationError

logger = logging.getLogger("trio_mcp")


@contextmanager
def telling(what: str) -> Generator[None]:
    """Call ``what``, a function of the user, inside. An exception is logged, and becomes an `AuthorizationError` that
    has the name of its type alone: the words may have secrets, and are for the log of their author."""
    try:
        yield
    except AuthorizationError:
        raise
    except Exception as error:
        logger.exception("%s failed", what)
        raise AuthorizationError(f"{what} failed: {type(error).__name__}") from None
