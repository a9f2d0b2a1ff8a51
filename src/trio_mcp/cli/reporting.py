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


def say_error(error: Exception) -> int:
    """Print the failure of the server, and return its exit status."""
    match error:
        case trio.TooSlowError():
            say("the server did not answer in time")
            return OUT_OF_TIME
        case SignInNeeded():
            say(
                "the server wants you to sign in: use a terminal, have your browser opened by --sign-in, or give a "
                "token by --bearer-env NAME"
            )
            return NOT_AUTHORIZED
        case AuthorizationError():
            say(str(error))
            return NOT_AUTHORIZED
        case BadTarget():
            say(str(error))
            return USAGE
        case ConnectionLost() | HTTPError(status=None):
            say(str(error))
            return NO_CONNECTION
        case CodedError():  # the answer to a request of a modern server
            say(f"the call ended: {error.message}")
            return SERVER_ERROR
        case PeerError():
            say(f"the server answered with an error: {error.message} (code {error.code})")
            return SERVER_ERROR
        case ProtocolViolation():
            say(f"the server violated the protocol: {error}")
            return SERVER_ERROR
        case NotSerializable():
            say(f"the arguments cannot be sent: {error}")
            return USAGE
        case _:
            say(str(error))
            return SERVER_ERROR
