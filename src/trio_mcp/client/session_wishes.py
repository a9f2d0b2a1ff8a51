"""SessionWishes: what a client has told a legacy server once, for all of a session."""

from __future__ import annotations

import attrs

from ..protocol.log_levels import LogLevel

__all__ = ["SessionWishes"]


@attrs.define(eq=False)
class SessionWishes:
    """The wishes of a client that a legacy server has agreed to. A server that has forgotten the session is told them
    anew."""

    log_level: LogLevel | None = None
    """Least severe level of the logs that the client wants; `None` where the client never said."""
    uris: dict[str, None] = attrs.field(factory=dict[str, None])
    """Resources that the client is subscribed to, in the order of subscribing."""
