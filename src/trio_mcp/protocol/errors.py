"""The error codes that MCP adds to JSON-RPC, and the exception classes that carry them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..classes import value
from ..jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, CodedError, ProtocolViolation
from .revisions import Revision, has_capability
from .types.elicitation import ElicitURLParams

HEADER_MISMATCH: Final = -32020
MISSING_REQUIRED_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042
"""Error code that requires a URL elicitation, in 2025-11-25 only. Modern servers return ``InputRequiredResult``
instead."""
NOT_INITIALIZED: Final = -32002
"""Error code for a request before the handshake, from servers that require the handshake (legacy revisions)."""
UPSTREAM_LOST: Final = -31001
"""Error code of this package: the server behind a proxy has disconnected, or couldn't be reached. That server may have
run the request."""
REPLICA_LOST: Final = -31003
"""Error code of this package: the replica that ran the request has ended, or has stopped working on the request. The
client should call again."""


@value
class URLElicitationRequiredData:
    """The data of a `URL_ELICITATION_REQUIRED` error: the URLs that the user must visit before the request can
    succeed."""

    elicitations: list[ElicitURLParams]


class CapabilityMissing(CodedError):
    """Raised if a server-to-client request needs a capability that the client hasn't declared.

    Nothing was sent. ``missing`` names the capability or capabilities. The code is -32600 in legacy revisions. In
    modern revisions it is -32021, with all missing capabilities in ``data.requiredCapabilities`` (2026-07-28 basic,
    Per-request protocol fields).
    """

    def __init__(self, missing: str | Sequence[str], revision: Revision) -> None:
        self.missing = (missing,) if isinstance(missing, str) else tuple(dict.fromkeys(missing))
        """The missing capabilities, in the order in which they were checked."""
        self.capability = self.missing[0]
        """The first missing capability."""
        required: dict[str, Any] = {}
        for name, _, part in (each.partition(".") for each in self.missing):
            required.setdefault(name, {}).update({part: {}} if part else {})
        code = revision.missing_capability
        data = {"requiredCapabilities": required} if code == MISSING_REQUIRED_CLIENT_CAPABILITY else None
        super().__init__(code, _what_is_missing(self.missing, revision), data)


def _what_is_missing(missing: Sequence[str], revision: Revision) -> str:
    names = [each for each in missing if not any(other.startswith(f"{each}.") for other in missing)]
    words = " and ".join(map(repr, names))
    reason = f"the client did not declare {'the capability' if len(names) == 1 else 'the capabilities'} {words}"
    unknown = [name for name in names if not has_capability(revision, name)]
    return f"{reason}; revision {revision} does not have {' and '.join(map(repr, unknown))}" if unknown else reason


class BadAnswer(ProtocolViolation, CodedError):
    """Raised if the client's answer to an input request (modern protocol revisions) doesn't match this input request.

    The code is -32602 (invalid params), because the client sends its answers as parameters of a request.
    """

    def __init__(self, reason: str) -> None:
        CodedError.__init__(self, INVALID_PARAMS, f"Invalid params: {reason}")


class NoBackChannel(CodedError):
    """Raised if a handler can't send requests to its client (error -32603).

    Nothing was sent.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(INTERNAL_ERROR, reason)


class MethodUnavailable(CodedError):
    """Raised if a request or notification isn't sent, because the peer doesn't support its method.

    Either the connection's protocol revision doesn't have the method, or the peer hasn't declared its extension. If a
    handler doesn't catch this error, the client gets error -32603, because the method that the client called does
    exist.
    """

    def __init__(self, method: str, revision: Revision, extension: str | None = None) -> None:
        reason = f"in revision {revision}" if extension is None else f"to a peer that has not declared {extension}"
        super().__init__(METHOD_NOT_FOUND, f"{method} cannot be sent {reason}")
