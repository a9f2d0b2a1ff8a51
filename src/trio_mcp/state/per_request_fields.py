"""PerRequestFields reads the fields in ``_meta`` by which each modern request describes itself and its client.

2026-07-28 basic, Per-request protocol fields: a required field that is missing is -32602.
"""

from __future__ import annotations

from typing import Any

from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..protocol.converters import structure_params
from ..protocol.errors import UNSUPPORTED_PROTOCOL_VERSION
from ..protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION
from ..protocol.revisions import MODERN_REVISIONS, REVISIONS, Revision
from ..protocol.types.lifecycle import ClientCapabilities, Implementation
from ..protocol.types.notifications import log_level_rank


def unsupported_version(version: str) -> CodedError:
    """Return the error for a request or notification of a version that no modern revision has (2026-07-28 versioning,
    Protocol Version Negotiation)."""
    supported = [row.name for row in MODERN_REVISIONS]
    data = {"supported": supported, "requested": version[:200]}
    return CodedError(UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", data)


class PerRequestFields:
    """Reads the fields in ``_meta`` for one connection. All methods raise `CodedError` for the error reply.

    Clients declare the same on every request, so the values read last are kept.
    """

    def __init__(self) -> None:
        self._capabilities: tuple[Any, ClientCapabilities] = ({}, ClientCapabilities())
        self._info: tuple[Any, Implementation | None] = (None, None)

    def revision(self, meta: dict[str, Any]) -> Revision:
        """Return the revision of the request."""
        version = meta.get(PROTOCOL_VERSION)
        if type(version) is not str:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {PROTOCOL_VERSION} in _meta is a string")
        revision = REVISIONS.get(version)
        if revision is None or revision.handshake:
            raise unsupported_version(version)
        return revision

    def log_level(self, meta: dict[str, Any]) -> str | None:
        """Return the least severe level of the logs that the request wants; `None` for no logs."""
        level = meta.get(LOG_LEVEL)
        if level is not None and (type(level) is not str or log_level_rank(level) < 0):
            # 2026-07-28 logging: SHOULD be rejected with -32602.
            raise CodedError(INVALID_PARAMS, f"Invalid params: {LOG_LEVEL} is not a log level")
        return level

    def capabilities(self, meta: dict[str, Any], revision: Revision) -> ClientCapabilities:
        """Return the capabilities that the client declares."""
        declared = meta.get(CLIENT_CAPABILITIES)
        if declared is None:
            raise CodedError(INVALID_PARAMS, f"Invalid params: missing {CLIENT_CAPABILITIES} in _meta")
        raw, capabilities = self._capabilities
        if declared != raw:
            capabilities = structure_params(declared, ClientCapabilities, revision)
            self._capabilities = (declared, capabilities)
        return capabilities

    def client_info(self, meta: dict[str, Any], revision: Revision) -> Implementation | None:
        """Return the client's description of itself; `None` when the request has none."""
        info = meta.get(CLIENT_INFO)
        if info is None:
            return None
        raw, client_info = self._info
        if info != raw:
            client_info = structure_params(info, Implementation, revision)
            self._info = (info, client_info)
        return client_info
