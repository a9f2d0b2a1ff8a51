"""The requests of a connection: the data of each request, and its phases.

`InboundRequest` and `OutboundRequest` are the two records. `PHASE_AFTER` is the life of an inbound request, as a table
of phases and steps. `PerRequestFields` reads the fields in ``_meta`` by which each modern request describes itself
(2026-07-28 basic, Per-request protocol fields: a missing required field is -32602).

========== ========== ========== ========== ========== ==========
phase      START      PARK       COME_BACK  MUTE       END
========== ========== ========== ========== ========== ==========
WAITING    RUNNING                          MUTED
RUNNING               PARKED                MUTED
PARKED                           WAITING    MUTED
MUTED                                       MUTED      OVER
OVER
========== ========== ========== ========== ========== ==========

An empty cell is an illegal step. Lines of a request are sent only while it's RUNNING (ruling 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias, cast

import attrs
import msgspec

from ..classes import define, frozen
from ..jsonrpc.codec import decode_value, pack_value
from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..jsonrpc.messages import RequestId
from ..jsonrpc.sizes import few_parts
from ..protocol.converters import structure_params
from ..protocol.errors import UNSUPPORTED_PROTOCOL_VERSION
from ..protocol.meta import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION,
    ProgressToken,
    TraceContext,
)
from ..protocol.methods import Method
from ..protocol.revisions import MODERN_REVISIONS, REVISIONS, Revision, declares
from ..protocol.types.lifecycle import ClientCapabilities, Implementation
from ..protocol.types.notifications import log_level_rank

_WORTH_PACKING: Final = 512
_MUCH_MORE: Final = 8
"""If the objects of a parameter take at least this many times the size of their text, the parameter is stored as text.
Such a parameter has many small objects. Other parameters are mostly strings, which the handler's copy shares."""


@frozen
class Continuation:
    """The data that a handler gets when it runs again after it requested input (2026-07-28 mrtr).

    It consists of the client's answers and the handler's own state.
    """

    responses: dict[str, Any]
    """``inputResponses`` as received, or a legacy client's results of the server's requests. The data is untrusted."""
    state: str = ""
    """The handler's own state, as the handler last returned it. Empty if the handler returned no state."""
    answers: dict[str, Any] = attrs.field(factory=dict[str, Any])
    """The client's answers so far, from all attempts, by the keys of the input requests."""


@define(eq=False)
class InboundRequest:
    """A request from the peer.

    Each request has its own protocol revision, because one connection can mix legacy and modern requests.
    """

    id: RequestId
    method: Method
    params: dict[str, Any]
    """Request parameters as plain data, including ``_meta``."""
    revision: Revision
    meta: dict[str, Any]
    capabilities: ClientCapabilities
    """Capabilities that the client declared: on this request if the revision requires that, and otherwise in
    ``initialize``."""
    client_info: Implementation | None
    log_level: str | None
    """Least severe log level that a modern request asked for. `None` means no logs. For legacy requests, the
    connection's level applies."""
    progress_token: ProgressToken | None
    size: int
    """Approximate size of the request in bytes: see `Request.size`."""
    error: CodedError | None = None
    """The error with which the request was answered, if any."""
    failed: bool = False
    """True if the handler failed and the failure was returned as a result."""
    continuation: Continuation | None = None
    """The client's answers, if the request is a retry after input requests. Otherwise `None`."""
    packed: bytes | None = attrs.field(default=None, init=False)
    """Request parameters as text. `None` while ``params`` contains the objects."""

    def pack(self) -> None:
        """Convert the parameters to text while the request waits, because objects take up to fifty times as much
        memory.

        ``params`` and ``meta`` are empty until `unpack`. Requests of 512 bytes or less stay unchanged.
        """
        if self.size > _WORTH_PACKING:
            self.pack_as(pack_value(self.params))

    def pack_as(self, text: bytes) -> None:
        """Replace the parameters by ``text``: their JSON text, which the caller already has. See `pack`."""
        self.packed = text
        self.params, self.meta = {}, {}

    def unpack(self) -> None:
        """Convert the parameters back from the text that `pack` or `pack_as` has made of them. Idempotent."""
        if self.packed is not None:
            self.params, self.packed = decode_value(self.packed), None
            self.meta = self.params.get("_meta") or {}

    def put_away(self, name: str) -> None:
        """Replace the parameter ``name`` by its JSON text, as `msgspec.Raw`, if the parameter takes much more memory
        than the text.

        The handler has its own copy, and all other code only compares the parameters.
        """
        if few_parts(self.params[name]) is not None:
            return  # as JSON text, a parameter with so few parts would need only a little less memory
        text = pack_value(self.params[name])
        if self.size > _MUCH_MORE * len(text):
            self.params = {**self.params, name: msgspec.Raw(text)}

    @property
    def trace(self) -> TraceContext | None:
        """The trace context in the request's ``_meta``."""
        self.unpack()
        return TraceContext.of(self.meta)

    def missing(self, capabilities: Iterable[str]) -> list[str]:
        """Return those of the ``capabilities`` that the client didn't declare, or that don't exist in the request's
        protocol revision."""
        return [each for each in capabilities if not declares(self.capabilities, each, self.revision)]


@define(eq=False)
class OutboundRequest:
    """A request that this side sends to the peer."""

    id: RequestId
    method: Method
    revision: Revision


class Phase(IntEnum):
    """The phases of a request that the peer has sent."""

    WAITING = 0
    """The request waits for a slot, initially or after the client's retry."""
    RUNNING = 1
    """The handler runs, and can send messages."""
    PARKED = 2
    """The request was answered with input requests. The handler waits for the client's retry, and can't send
    messages."""
    MUTED = 3
    """The handler has ended, or the request was cancelled. Nothing more is sent, except for a reply."""
    OVER = 4
    """The handler, all its tasks and its cleanup have ended."""


class Step(IntEnum):
    """The steps in the handling of a request from the peer. Each step changes the request's phase."""

    START = 0
    """The request gets a slot, so that its handler can run."""
    PARK = 1
    """The request is answered with input requests, and its handler waits."""
    COME_BACK = 2
    """The client has retried the request with answers to the input requests."""
    MUTE = 3
    """The handler has ended, or the request is cancelled."""
    END = 4
    """The handler, its child tasks and their cleanup have ended."""


class IllegalStep(RuntimeError):
    """Raised for a step that isn't allowed in the request's phase. This error means that this package has a bug."""


PHASE_AFTER: Final[tuple[tuple[Phase | None, ...], ...]] = (
    (Phase.RUNNING, None, None, Phase.MUTED, None),
    (None, Phase.PARKED, None, Phase.MUTED, None),
    (None, None, Phase.WAITING, Phase.MUTED, None),
    (None, None, None, Phase.MUTED, Phase.OVER),
    (None, None, None, None, None),
)
"""The phase that follows a step, by the phase before the step and the step."""

Role: TypeAlias = Literal["client", "server"]


def unsupported_version(version: str) -> CodedError:
    """Return the error for a request or notification whose protocol version isn't a modern protocol revision
    (2026-07-28 versioning, Protocol Version Negotiation)."""
    supported = [row.name for row in MODERN_REVISIONS]
    data = {"supported": supported, "requested": version[:200]}
    return CodedError(UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", data)


def progress_token_of(meta: object) -> ProgressToken | None:
    """Return the progress token in the ``meta`` of a request, or `None` if it has no valid token.

    ``0`` and ``""`` are valid tokens. Any value other than a string or an integer is ignored, and the request is served
    without progress (2025-11-25 progress, Progress Flow: MUST be a string or integer value).
    """
    if type(meta) is not dict:
        return None
    token = cast("dict[str, Any]", meta).get(PROGRESS_TOKEN)
    return token if type(token) is int or type(token) is str else None


class PerRequestFields:
    """Reads the fields that each request of a modern protocol revision has in ``_meta``.

    All methods raise `CodedError` if a field is missing or invalid.

    Clients declare the same values on every request, so the last ones are cached.
    """

    def __init__(self) -> None:
        self._capabilities: tuple[Any, ClientCapabilities] = ({}, ClientCapabilities())
        self._info: tuple[Any, Implementation | None] = (None, None)

    def revision(self, meta: dict[str, Any]) -> Revision:
        """Return the protocol revision that the request names."""
        version = meta.get(PROTOCOL_VERSION)
        if type(version) is not str:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {PROTOCOL_VERSION} in _meta must be a string")
        revision = REVISIONS.get(version)
        if revision is None or revision.handshake:
            raise unsupported_version(version)
        return revision

    def log_level(self, meta: dict[str, Any]) -> str | None:
        """Return the least severe level of the log messages that the request asks for. `None` means no log messages."""
        level = meta.get(LOG_LEVEL)
        if level is not None and (type(level) is not str or log_level_rank(level) < 0):
            # MCP 2026-07-28, logging page: a server SHOULD reject an unknown log level with -32602.
            raise CodedError(INVALID_PARAMS, f"Invalid params: {LOG_LEVEL} in _meta must be a log level")
        return level

    def capabilities(self, meta: dict[str, Any], revision: Revision) -> ClientCapabilities:
        """Return the client capabilities that the request declares."""
        declared = meta.get(CLIENT_CAPABILITIES)
        if declared is None:
            raise CodedError(INVALID_PARAMS, f"Invalid params: missing {CLIENT_CAPABILITIES} in _meta")
        raw, capabilities = self._capabilities
        if declared != raw:
            capabilities = structure_params(declared, ClientCapabilities, revision)
            self._capabilities = (declared, capabilities)
        return capabilities

    def client_info(self, meta: dict[str, Any], revision: Revision) -> Implementation | None:
        """Return the client's name and version from the request. Return `None` if the request has none."""
        info = meta.get(CLIENT_INFO)
        if info is None:
            return None
        raw, client_info = self._info
        if info != raw:
            client_info = structure_params(info, Implementation, revision)
            self._info = (info, client_info)
        return client_info
