"""Reports to the user on standard error: sentences, and for each failure of a server the exit status, too."""

from __future__ import annotations

from typing import Final

import trio

from ..auth.credentials import AuthorizationError, SignInNeeded
from ..connecting.bad_target import BadTarget
from ..jsonrpc.errors import CodedError, MCPError, NotSerializable, PeerError, ProtocolViolation
from ..runtime.transport import ConnectionLost, HTTPError
from .printable import say
from .statuses import NO_CONNECTION, NOT_AUTHORIZED, OUT_OF_TIME, SERVER_ERROR, USAGE

WITH_SERVER: Final = (MCPError, trio.TooSlowError)
"""Exceptions of the use of a server, for `say_error`."""
_SIGN_IN: Final = (
    "the server wants you to sign in: use a terminal, have your browser opened by --sign-in, or give a token by "
    "--bearer-env NAME"
)


def say_error(error: Exception) -> int:
    """Print the failure of the server, and return its exit status."""
    words, status = _report(error)
    say("\n".join([words, *getattr(error, "__notes__", ())]))
    return status


def _report(error: Exception) -> tuple[str, int]:
    match error:
        case trio.TooSlowError():
            return "the server did not answer in time" + (f": {error}" if str(error) else ""), OUT_OF_TIME
        case SignInNeeded():
            return _SIGN_IN, NOT_AUTHORIZED
        case AuthorizationError():
            return str(error), NOT_AUTHORIZED
        case BadTarget():
            return str(error), USAGE
        case ConnectionLost() | HTTPError(status=None):
            return str(error), NO_CONNECTION
        case CodedError():  # the answer to a request of a modern server
            return f"the call ended: {error.message}", SERVER_ERROR
        case PeerError():
            return f"the server answered with an error: {error.message} (code {error.code})", SERVER_ERROR
        case ProtocolViolation():
            return f"the server violated the protocol: {error}", SERVER_ERROR
        case NotSerializable():
            return f"the arguments cannot be sent: {error}", USAGE
        case _:
            return str(error), SERVER_ERROR
