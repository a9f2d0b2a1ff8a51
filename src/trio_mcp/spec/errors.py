"""The error codes MCP adds to JSON-RPC, and the errors that carry them."""

from __future__ import annotations

from typing import Final

from ..jsonrpc.errors import INTERNAL_ERROR, CodedError
from .revisions import Revision

__all__ = [
    "MISSING_REQUIRED_CLIENT_CAPABILITY",
    "NOT_INITIALIZED",
    "TOO_BUSY",
    "UNSUPPORTED_PROTOCOL_VERSION",
    "CapabilityMissing",
    "NoWayBack",
]

MISSING_REQUIRED_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
NOT_INITIALIZED: Final = -32002
"""What servers that insist on the handshake have always answered before it (legacy revisions)."""
TOO_BUSY: Final = -31000
"""Ours, outside the reserved ranges: a limit of this server is reached, or it is shutting down; try later."""


class CapabilityMissing(CodedError):
    """The peer never declared ``capability``, so nothing was sent.

    -32600 in legacy revisions; -32021 with ``data.requiredCapabilities`` in modern ones
    (2026-07-28 basic, Per-request protocol fields).
    """

    def __init__(self, capability: str, revision: Revision) -> None:
        self.capability = capability
        name, _, part = capability.partition(".")
        required = {name: {part: {}} if part else {}}
        data = {"requiredCapabilities": required} if revision.missing_capability == MISSING_REQUIRED_CLIENT_CAPABILITY else None
        super().__init__(revision.missing_capability, f"the peer did not declare the capability {capability!r}", data)


class NoWayBack(CodedError):
    """This request has no way to ask its client anything (-32603); nothing was sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(INTERNAL_ERROR, reason)
