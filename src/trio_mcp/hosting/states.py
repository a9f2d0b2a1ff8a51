"""The states of a member, and the news of them."""

from __future__ import annotations

from enum import StrEnum

import attrs

__all__ = ["MemberState", "MemberStatus"]


class MemberState(StrEnum):
    """What a member is doing."""

    STARTING = "starting"
    """It connects for the first time. Calls wait for it."""
    READY = "ready"
    """It can be called."""
    FAILED = "failed"
    """It is gone, and is not started anew. Calls raise `MemberUnavailable`."""
    RESTARTING = "restarting"
    """It is gone, and will be started anew, or is being so. Calls wait for it."""
    CLOSED = "closed"
    """It was removed, or the group was left. Calls raise `MemberUnavailable`."""


@attrs.frozen
class MemberStatus:
    """How a member is."""

    name: str
    state: MemberState
    error: Exception | None = None
    """Why it failed the last time, where it did: `ConnectionLost`, `PeerError`, `ProtocolViolation`, or what else
    the server's opening raised."""
    stderr: tuple[str, ...] = ()
    """The last lines that its process wrote on standard error before that."""
    restarts: int = 0
    """How many times in a row it was, or is to be, started anew."""
    retry_in: float | None = None
    """Seconds from this status to the next start, where there is one to wait for."""
