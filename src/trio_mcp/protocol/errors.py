"""The error codes MCP adds to JSON-RPC, and the errors that carry them."""

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
"""2025-11-25 only; modern servers return ``InputRequiredResult`` instead."""
NOT_INITIALIZED: Final = -32002
"""Code of servers that insist on the handshake, for earlier requests (legacy revisions)."""
UPSTREAM_LOST: Final = -31001
"""A code of ours: the server behind a proxy is gone, or was never reached. The request may have run there or not."""
REPLICA_LOST: Final = -31003
"""A code of ours: the process that ran the request, one replica of several, has ended, or goes on with it no more. The
client calls again."""


@value
class URLElicitationRequiredData:
    """The data of `URL_ELICITATION_REQUIRED`: what the user has to do before the request can succeed."""

    elicitations: list[ElicitURLParams]


class CapabilityMissing(CodedError):
    """The client never declared ``missing``, one capability or several, so nothing was sent.

    -32600 in legacy revisions; -32021 with all missing capabilities in ``data.requiredCapabilities`` in modern ones
    (2026-07-28 basic, Per-request protocol fields).
    """

    def __init__(self, missing: str | Sequence[str], revision: Revision) -> None:
        self.missing = (missing,) if isinstance(missing, str) else tuple(dict.fromkeys(missing))
        """The missing capabilities, in the order of the search."""
        self.capability = self.missing[0]
        """The first missing capability."""
        required: dict[str, Any] = {}
        for name, _, part in (each.partition(".") for each in self.missing):
            required.setdefault(name, {}).update({part: {}} if part else {})
        data = (
            {"requiredCapabilities": required}
            if revision.missing_capability == MISSING_REQUIRED_CLIENT_CAPABILITY
            else None
        )
        super().__init__(revision.missing_capability, _what_is_missing(self.missing, revision), data)


def _what_is_missing(missing: Sequence[str], revision: Revision) -> str:
    names = [each for each in missing if not any(other.startswith(f"{each}.") for other in missing)]
    words = " and ".join(map(repr, names))
    reason = f"the client did not declare {'the capability' if len(names) == 1 else 'the capabilities'} {words}"
    unknown = [name for name in names if not has_capability(revision, name)]
    return f"{reason}; revision {revision} has no {' and no '.join(map(repr, unknown))}" if unknown else reason


class BadAnswer(ProtocolViolation, CodedError):
    """The client's answer to a question does not fit the question, in a modern revision: -32602, since modern answers
    are parameters of a request."""

    def __init__(self, reason: str) -> None:
        CodedError.__init__(self, INVALID_PARAMS, f"Invalid params: {reason}")


class NoBackChannel(CodedError):
    """The request has no way to ask its client anything (-32603); nothing was sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(INTERNAL_ERROR, reason)


class MethodUnavailable(CodedError):
    """The revision of this connection does not have the method, or the peer has not declared the extension that has.
    Nothing was sent.

    If a handler does not catch the error, its own request is answered with -32603: the method of that request exists.
    """

    def __init__(self, method: str, revision: Revision, extension: str | None = None) -> None:
        reason = f"in revision {revision}" if extension is None else f"to a peer that has not declared {extension}"
        super().__init__(METHOD_NOT_FOUND, f"{method} cannot be sent {reason}")
