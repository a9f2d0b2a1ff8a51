"""Cancellation of a request with its cause and reason, and deadlines that travel with requests.

A caller sends its remaining time with a call, in ``_meta``, under a key of this package. The value is a duration and
not a time of day, so the clocks of the two sides don't have to agree. The receiver's deadline is later than the
caller's, by the message's travel time and a grace period. So a caller that still waits always gets a reply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import trio

from ..classes import frozen
from ..jsonrpc.errors import CodedError, ProtocolViolation

DEADLINE_PASSED: Final = "the caller's deadline passed"


class CancelCause(StrEnum):
    """Why a request was cancelled, for example because the client disconnected or a time limit has passed."""

    PEER = "peer"
    """The caller cancelled the request."""
    DEADLINE = "deadline"
    """The time limit of the tool, or the deadline that the caller sent with the call, has passed."""
    DISCONNECT = "disconnect"
    """The connection to the caller was lost."""
    EXPIRED = "expired"
    """The handler asked its client for input, and the client answered too late, or too many handlers waited for
    answers."""
    REPLAY = "replay"
    """The handler asked its client for input, and will run again from the start, with the answers."""
    SHUTDOWN = "shutdown"
    """This side is shutting down, and ``drain_timeout`` has passed."""
    TASK = "task"
    """The task was cancelled by ``tasks/cancel``, or because its time to live has passed."""
    LEASE = "lease"
    """Another process has taken over the task, because this process seemed dead. In a session that several processes
    serve, it can also mean that this process can no longer store the events of the call."""
    PARENT = "parent"
    """The application itself cancelled the request: by a cancel scope around the whole connection, or by
    `RequestContext.cancel_scope`."""


@frozen
class Cancellation:
    """Why and when a request was cancelled."""

    cause: CancelCause
    """What cancelled the request."""
    reason: str | None
    """Text that the cancelling side gave; `None` if it gave no reason."""
    at: float
    """Time of the cancellation in seconds on trio's clock (`trio.current_time`)."""

    @property
    def text(self) -> str:
        """The reason for the cancellation or, if no reason was given, the name of the cause.

        The request's tasks see this text as the reason of `trio.Cancelled`.
        """
        return self.reason or self.cause.value


def reason_of(cancelled: BaseException) -> str:
    """Return the ``reason`` for ``notifications/cancelled``, which is sent when the exception ``cancelled`` ends an
    outgoing call.

    Besides fixed phrases, only two texts are sent: the reason of an explicit `trio.CancelScope.cancel`, and the message
    of a `CodedError`, which is written for the peer. trio's own reasons aren't sent, because they name tasks and
    exceptions of this process.
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


REMAINING_MS: Final = "trio-mcp/remainingMs"
"""Key in a request's ``_meta`` for the milliseconds until the caller gives up, counted from the arrival of the request.
The value is an integer, 0 or greater."""

_LONGEST_REMAINING: Final = 10**12
_AT_ONCE: Final = frozenset({"initialize", "server/discover", "ping", "subscriptions/listen"})
"""Methods whose requests carry no deadline, because they are answered without calling a handler of the server's
author."""


def with_remaining(method: str, params: dict[str, Any] | None, deadline: float) -> dict[str, Any] | None:
    """Add the time that remains until ``deadline`` to the ``_meta`` of the request parameters ``params``. ``deadline``
    is a time on trio's clock.

    Return ``params`` unchanged if there is no deadline, or if requests of the method carry no deadline.
    """
    if deadline == math.inf or method in _AT_ONCE:
        return params
    params = params or {}
    left = deadline - trio.current_time()
    # In a cancelled task, `trio.current_effective_deadline` is -inf.
    remaining = math.ceil(left * 1000) if left > 0 else 0
    return {**params, "_meta": {REMAINING_MS: remaining, **(params.get("_meta") or {})}}


def deadline_of(meta: Mapping[str, Any]) -> float:
    """Return the deadline that the sender of a request set in ``meta``, as a time on trio's clock.

    The deadline is calculated from the remaining milliseconds in the ``meta`` of a request that has just arrived.
    Return `math.inf` if ``meta`` has no valid number of milliseconds.
    """
    remaining = meta.get(REMAINING_MS)
    if type(remaining) is not int or not 0 <= remaining <= _LONGEST_REMAINING:
        return math.inf
    return trio.current_time() + remaining / 1000
