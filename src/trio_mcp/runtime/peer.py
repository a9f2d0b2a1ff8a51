"""Who is at the other end of a connection."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

__all__ = ["NOBODY_KNOWN", "THE_ONLY_ONE", "Peer"]


@attrs.frozen(eq=False)
class Peer:
    """What the transport knows of the client; nothing, on stdio and in memory."""

    session_id: str | None = None
    """Names this connection; minted by us."""
    headers: Mapping[str, str] | None = None
    """Headers of the HTTP request it came with, names in lower case."""
    principal: str | None = None
    """Who calls, where the transport has found out; answers to questions must come from the same."""
    alone: bool = False
    """No other client can come as long as it is here, as on stdio: nothing need be kept free for others."""


NOBODY_KNOWN = Peer()
THE_ONLY_ONE = Peer(alone=True)
