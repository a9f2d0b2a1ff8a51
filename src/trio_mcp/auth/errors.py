"""AuthorizationError: a client could not get, or use, a token; also where a function of the user has failed."""

from __future__ import annotations

import logging
from collections.abc import Generator

from ..concurrency.contexts import contextmanager
from ..jsonrpc.errors import MCPError, clean


class AuthorizationError(MCPError):
    """A request was refused for want of a token, and no token could be had. Other calls are not concerned.

    ``reason`` is for the people who run the client, and has no secret. ``code`` is the error of OAuth, where a server
    has sent one (RFC 6749 sections 4.1.2.1 and 5.2; RFC 6750 section 3.1), ``"access_denied"`` for example.
    """

    def __init__(self, reason: str, *, code: str | None = None) -> None:
        self.reason = clean(reason)
        super().__init__(self.reason)
        self.code = code


class SignInNeeded(AuthorizationError):
    """The user has to sign in, and `OAuth.asks_user` says that the user is not to be asked. Nothing was sent to an
    authorization server."""


logger = logging.getLogger("trio_mcp")


@contextmanager
def calling_user_code(what: str) -> Generator[None]:
    """Call ``what``, a function of the user, inside. An exception is logged, and becomes an `AuthorizationError` that
    has the name of its type alone: the words may have secrets, and are for the log of their author."""
    try:
        yield
    except AuthorizationError:
        raise
    except Exception as error:
        logger.exception("%s failed", what)
        raise AuthorizationError(f"{what} failed: {type(error).__name__}") from None
