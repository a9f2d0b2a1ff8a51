"""MemberState and MemberStatus: the state of a member, and the reports of it."""

from __future__ import annotations

from enum import StrEnum

import attrs


class MemberState(StrEnum):
    """The state of a member."""

    STARTING = "starting"
    """The member connects for the first time. Calls wait."""
    READY = "ready"
    """The member can be called."""
    FAILED = "failed"
    """The member has failed, and is not started anew. Calls raise `MemberUnavailable`."""
    RESTARTING = "restarting"
    """The member has failed, and will be or is being started anew. Calls wait for it."""
    CLOSED = "closed"
    """The member was removed, or the group was left. Calls raise `MemberUnavailable`."""


@attrs.frozen
class MemberStatus:
    """The state of a member, with its last failure and its restarts."""

    name: str
    state: MemberState
    error: Exception | None = None
    """The cause of the last failure, if any: `ConnectionLost`, `PeerError`, `ProtocolViolation`, or another exception
    that opening the server raised."""
    stderr: tuple[str, ...] = ()
    """The last lines of its process on standard error before the failure."""
    restarts: int = 0
    """Restarts in a row, made or due."""
    retry_in: float | None = None
    """Seconds from this status to the next start; `None` where no start is due."""
