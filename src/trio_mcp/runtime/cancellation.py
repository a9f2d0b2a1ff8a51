"""The cancellation of a request, as data."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import attrs
import trio

from ..jsonrpc.errors import CodedError, ProtocolViolation

DEADLINE_PASSED: Final = "the caller's deadline passed"


class CancelCause(StrEnum):
    """The party or the event that cancelled a request."""

    PEER = "peer"
    """The caller gave up on the request."""
    DEADLINE = "deadline"
    """The time limit of the tool was over, or the deadline had passed that the caller gave with the call."""
    DISCONNECT = "disconnect"
    """The connection is gone."""
    EXPIRED = "expired"
    """The handler asked its client, and the answers did not come in time, or too many handlers waited for answers."""
    REPLAY = "replay"
    """The handler asked its client and will run again, from the top, with the answers."""
    SHUTDOWN = "shutdown"
    """Our side is closing down and the time to drain was over."""
    TASK = "task"
    """The task was cancelled: by ``tasks/cancel``, or because its time to live was over."""
    LEASE = "lease"
    """Another process runs the task now, since this process was taken for dead."""
    PARENT = "parent"
    """The application itself cancelled the request: by a scope around the whole connection, or by the request's own
    scope, `RequestContext.cancel_scope`."""


@attrs.frozen
class Cancellation:
    """The ``cause`` of a cancel, the ``reason`` that the cancelling party gave (`None`: no reason given), and the time,
    ``at``, of `trio.current_time`."""

    cause: CancelCause
    reason: str | None
    at: float

    @property
    def words(self) -> str:
        """The reason, or else the cause, as trio's own cancel reason."""
        return self.reason or self.cause.value


def reason_of(cancelled: BaseException) -> str:
    """Return the reason that the peer is told when we leave a call because of ``cancelled``.

    Apart from fixed phrases, two texts travel: the reason of an explicit `trio.CancelScope.cancel`, and the message of
    a `CodedError`, which is written for the peer. trio's own reasons name tasks and exceptions of this process, and
    stay here.
    """
    if isinstance(cancelled, CodedError):
        return cancelled.message
    if isinstance(cancelled, ProtocolViolation):
        return "the answer makes no sense"
    if isinstance(cancelled, trio.TooSlowError):
        return DEADLINE_PASSED
    if isinstance(cancelled, trio.Cancelled):
        if cancelled.source == "explicit":
            return cancelled.reason or "cancelled by the caller"
        if cancelled.source == "deadline":
            return DEADLINE_PASSED
    return "the caller is gone"
