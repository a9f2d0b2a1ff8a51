"""The two records a connection keeps: requests that came in, and requests that went out."""

from __future__ import annotations

from typing import Any

import attrs

from ..jsonrpc.errors import CodedError
from ..jsonrpc.messages import RequestId
from ..spec.capabilities import ClientCapabilities
from ..spec.lifecycle import Implementation
from ..spec.meta import ProgressToken
from ..spec.methods import Method
from ..spec.revisions import Revision

__all__ = ["InboundRequest", "OutboundRequest"]


@attrs.define(eq=False)
class InboundRequest:
    """A request of the peer. It carries its own revision: eras may be mixed on one connection."""

    id: RequestId
    method: Method
    params: dict[str, Any]
    """Plain, ``_meta`` included."""
    revision: Revision
    meta: dict[str, Any]
    capabilities: ClientCapabilities
    """What the client declared: on this request where the revision says so, else in ``initialize``."""
    client_info: Implementation | None
    log_level: str | None
    """The minimum level a modern request asked for; `None`: no logs. Legacy requests ask the connection."""
    progress_token: ProgressToken | None
    size: int
    """Bytes on the wire."""
    error: CodedError | None = None
    """What it is refused with; `None` while it is not."""


@attrs.define(eq=False)
class OutboundRequest:
    """A request of ours. ``waiter`` belongs to whoever sent it."""

    id: RequestId
    method: Method
    revision: Revision
    waiter: Any = None
