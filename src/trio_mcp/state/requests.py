"""The two records a connection keeps: requests that came in, and requests that went out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import attrs

from ..jsonrpc.codec import decode_value, pack_value
from ..jsonrpc.errors import CodedError
from ..jsonrpc.messages import RequestId
from ..protocol.meta import ProgressToken
from ..protocol.methods import Method
from ..protocol.revisions import Revision, declares
from ..protocol.types.lifecycle import ClientCapabilities, Implementation

_WORTH_PACKING: Final = 512


@attrs.frozen
class Continuation:
    """The results of earlier rounds, for a handler that runs again (2026-07-28 mrtr)."""

    responses: dict[str, Any]
    """``inputResponses`` as received, or the results of our own requests to a legacy client: untrusted."""
    state: str = ""
    """The handler's own state, as returned the last time; empty when the handler returned no state."""
    answers: dict[str, Any] = attrs.field(factory=dict[str, Any])
    """The answers of all rounds so far, by the keys of the questions."""


@attrs.define(eq=False)
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
        """Keep the parameters as text while the request waits: objects take up to thirty times as much memory. Until
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

    def missing(self, capabilities: Iterable[str]) -> list[str]:
        """Return the members of ``capabilities`` that the client does not support, or that the revision of the request
        does not have."""
        return [each for each in capabilities if not declares(self.capabilities, each, self.revision)]


@attrs.define(eq=False)
class OutboundRequest:
    """A request of ours."""

    id: RequestId
    method: Method
    revision: Revision
