"""The requests of a connection: what is kept of each, and its life.

`InboundRequest` and `OutboundRequest` are the two records. `PHASE_AFTER` is the life of an inbound request, as a table
of phases and steps. `PerRequestFields` reads the fields in ``_meta`` by which each modern request describes itself
(2026-07-28 basic, Per-request protocol fields: a required field that is missing is -32602).

========== ========== ========== ========== ========== ==========
phase      START      PARK       COME_BACK  MUTE       END
========== ========== ========== ========== ========== ==========
WAITING    RUNNING                          MUTED
RUNNING               PARKED                MUTED
PARKED                           WAITING    MUTED
MUTED                                       MUTED      OVER
OVER
========== ========== ========== ========== ========== ==========

An empty cell is a step that cannot be taken. Lines of a request are sent while the request runs, and in no other phase
(ruling 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias

import attrs
import msgspec

from ..classes import define, frozen
from ..jsonrpc.codec import decode_value, pack_value
from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..jsonrpc.messages import RequestId
from ..jsonrpc.sizes import few_parts
from ..protocol.converters import structure_params
from ..protocol.errors import UNSUPPORTED_PROTOCOL_VERSION
from ..protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION, ProgressToken, TraceContext
from ..protocol.methods import Method
from ..protocol.revisions import MODERN_REVISIONS, REVISIONS, Revision, declares
from ..protocol.types.lifecycle import ClientCapabilities, Implementation
from ..protocol.types.notifications import log_level_rank

_WORTH_PACKING: Final = 512
_MUCH_MORE: Final = 8
"""Factor from which on a request has many small objects. Strings are shared with the copy of a handler."""


@frozen
class Continuation:
    """The results of earlier rounds, for a handler that runs again (2026-07-28 mrtr)."""

    responses: dict[str, Any]
    """``inputResponses`` as received, or the results of our own requests to a legacy client: untrusted."""
    state: str = ""
    """The handler's own state, as returned the last time; empty when the handler returned no state."""
    answers: dict[str, Any] = attrs.field(factory=dict[str, Any])
    """The answers of all rounds so far, by the keys of the questions."""


@define(eq=False)
class InboundRequest:
    """A request of the peer, with a revision of its own: legacy and modern requests may be mixed on one connection."""

    id: RequestId
    method: Method
    params: dict[str, Any]
    """Parameters as plain data, ``_meta`` included."""
    revision: Revision
    meta: dict[str, Any]
    capabilities: ClientCapabilities
    """Capabilities that the client declared: on this request where the revision says so, else in ``initialize``."""
    client_info: Implementation | None
    log_level: str | None
    """Least severe level that a modern request asked for; `None`: no logs. For legacy requests the level of the
    connection counts."""
    progress_token: ProgressToken | None
    size: int
    """Bytes that the request takes, approximately: see `Request.size`."""
    error: CodedError | None = None
    """Error that the request is answered with; `None` while there is no error."""
    failed: bool = False
    """True once the handler failed and a result tells of the failure."""
    continuation: Continuation | None = None
    """Results of earlier rounds; `None` in the first round."""
    packed: bytes | None = attrs.field(default=None, init=False)
    """Parameters as text; `None` while ``params`` holds the objects."""

    def pack(self) -> None:
        """Keep the parameters as text while the request waits: objects take up to fifty times as much memory. Until
        `unpack`, ``params`` and ``meta`` are empty. Small requests (512 bytes or less) stay unpacked."""
        if self.size > _WORTH_PACKING:
            self.pack_as(pack_value(self.params))

    def pack_as(self, text: bytes) -> None:
        """Keep ``text``, which has the parameters, in their place. See `pack`."""
        self.packed = text
        self.params, self.meta = {}, {}

    def unpack(self) -> None:
        """Undo `pack` or `pack_as`. Idempotent."""
        if self.packed is not None:
            self.params, self.packed = decode_value(self.packed), None
            self.meta = self.params.get("_meta") or {}

    def put_away(self, name: str) -> None:
        """Keep the parameter ``name`` as text, a `msgspec.Raw`, where the objects take much more memory: the handler
        has its own copy, and no other code reads them, except to identify the request."""
        if few_parts(self.params[name]) is not None:
            return  # there are few objects, so nearly all of the memory is that of strings
        text = pack_value(self.params[name])
        if self.size > _MUCH_MORE * len(text):
            self.params = {**self.params, name: msgspec.Raw(text)}

    @property
    def trace(self) -> TraceContext | None:
        """The trace that the request belongs to, as its ``_meta`` says now."""
        self.unpack()
        return TraceContext.of(self.meta)

    def missing(self, capabilities: Iterable[str]) -> list[str]:
        """Return the members of ``capabilities`` that the client does not support, or that the revision of the request
        does not have."""
        return [each for each in capabilities if not declares(self.capabilities, each, self.revision)]


@define(eq=False)
class OutboundRequest:
    """A request of ours."""

    id: RequestId
    method: Method
    revision: Revision


class Phase(IntEnum):
    """The phases in the life of a request."""

    WAITING = 0
    """The request waits for its turn: for the first time, or with the answers to the questions of its handler."""
    RUNNING = 1
    """The handler runs, and may send."""
    PARKED = 2
    """The request was answered with questions. The handler waits for the client to come back, and may not send."""
    MUTED = 3
    """Nothing more is sent but, perhaps, the reply: the handler is done, or the request was cancelled."""
    OVER = 4
    """The handler, all its tasks and its cleanup have ended."""


class Step(IntEnum):
    """The steps from phase to phase."""

    START = 0
    """The turn of the request has come."""
    PARK = 1
    """The request is answered with questions."""
    COME_BACK = 2
    """The client has brought the answers."""
    MUTE = 3
    """The handler is done, or the request is cancelled."""
    END = 4
    """The handler, its child tasks and their cleanup have ended."""


class IllegalStep(RuntimeError):
    """A step that the table does not have: a defect of this package."""


PHASE_AFTER: Final[tuple[tuple[Phase | None, ...], ...]] = (
    (Phase.RUNNING, None, None, Phase.MUTED, None),
    (None, Phase.PARKED, None, Phase.MUTED, None),
    (None, None, Phase.WAITING, Phase.MUTED, None),
    (None, None, None, Phase.MUTED, Phase.OVER),
    (None, None, None, None, None),
)
"""Phase after each step, by the phase before."""

Role: TypeAlias = Literal["client", "server"]


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
