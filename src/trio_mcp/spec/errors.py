"""The error codes MCP adds to JSON-RPC, and the errors that carry them."""

from __future__ import annotations

from typing import Any, Final

from ..jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, CodedError, ProtocolViolation
from ..jsonrpc.values import value
from .capabilities import ClientCapabilities
from .elicitation import ElicitURLParams
from .revisions import Revision

__all__ = [
    "HEADER_MISMATCH",
    "MISSING_REQUIRED_CLIENT_CAPABILITY",
    "NOT_INITIALIZED",
    "TOO_BUSY",
    "UNSUPPORTED_PROTOCOL_VERSION",
    "UPSTREAM_LOST",
    "URL_ELICITATION_REQUIRED",
    "BadAnswer",
    "CapabilityMissing",
    "MethodUnavailable",
    "MissingCapabilityData",
    "NoWayBack",
    "URLElicitationRequiredData",
    "UnsupportedVersionData",
]

HEADER_MISMATCH: Final = -32020
MISSING_REQUIRED_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042
"""2025-11-25 only; modern servers return ``InputRequiredResult`` instead."""
NOT_INITIALIZED: Final = -32002
"""What servers that insist on the handshake have always answered before it (legacy revisions)."""
TOO_BUSY: Final = -31000
"""Ours, outside the reserved ranges: a limit of this server is reached, or it is shutting down; try later."""
UPSTREAM_LOST: Final = -31001
"""Ours: the server behind a proxy is gone, or was never reached. Whether the request ran there is not known."""


@value
class UnsupportedVersionData:
    """The data of `UNSUPPORTED_PROTOCOL_VERSION`: what to ask for instead."""

    supported: list[str]
    requested: str


@value
class MissingCapabilityData:
    """The data of `MISSING_REQUIRED_CLIENT_CAPABILITY`: what the request needs its client to declare."""

    required_capabilities: ClientCapabilities


@value
class URLElicitationRequiredData:
    """The data of `URL_ELICITATION_REQUIRED`: what the user has to do before the request can succeed."""

    elicitations: list[ElicitURLParams]


class CapabilityMissing(CodedError):
    """The peer never declared ``capability``, so nothing was sent.

    -32600 in legacy revisions; -32021 with ``data.requiredCapabilities`` in modern ones
    (2026-07-28 basic, Per-request protocol fields).
    """

    def __init__(self, capability: str, revision: Revision) -> None:
        self.capability = capability
        name, _, part = capability.partition(".")
        required: dict[str, Any] = {name: {part: {}} if part else {}}
        data = (
            {"requiredCapabilities": required}
            if revision.missing_capability == MISSING_REQUIRED_CLIENT_CAPABILITY
            else None
        )
        super().__init__(revision.missing_capability, f"the peer did not declare the capability {capability!r}", data)


class BadAnswer(ProtocolViolation, CodedError):
    """The client's answer to a question does not fit what was asked, in a modern revision: -32602, since there the
    answers are parameters of the request that brings them."""

    def __init__(self, reason: str) -> None:
        CodedError.__init__(self, INVALID_PARAMS, f"Invalid params: {reason}")


class NoWayBack(CodedError):
    """This request has no way to ask its client anything (-32603); nothing was sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(INTERNAL_ERROR, reason)


class MethodUnavailable(CodedError):
    """We wanted to send what the revision of this connection does not have. Nothing was sent."""

    def __init__(self, method: str, revision: Revision) -> None:
        super().__init__(METHOD_NOT_FOUND, f"{method} cannot be sent in revision {revision}")
