"""The cancellation of a request, its cause and its reason, and deadlines.

The time that is left travels with a call, in its ``_meta``, under a key of ours. The value is a duration and no time of
day, so the clocks of the two sides need not agree. The receiver's deadline is later than the caller's, by the time that
the message took and by a grace, so no caller that still waits is left without a reply.
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
    """Another process runs the task now, since this process was taken for dead; or the events of the call, in a session
    that several processes serve, cannot be kept by this one any more."""
    PARENT = "parent"
    """The application itself cancelled the request: by a scope around the whole connection, or by the request's own
    scope, `RequestContext.cancel_scope`."""


@frozen
class Cancellation:
    """The ``cause`` of a cancel, the ``reason`` that the cancelling party gave (`None`: no reason given), and the time,
    ``at``, of `trio.current_time`."""

    cause: CancelCause
    reason: str | None
    at: float

    @property
    def text(self) -> str:
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


REMAINING_MS: Final = "trio-mcp/remainingMs"
"""Whole milliseconds until the caller gives up, counted from the arrival of the request; 0 and more."""

_LONGEST_REMAINING: Final = 10**12
_AT_ONCE: Final = frozenset({"initialize", "server/discover", "ping", "subscriptions/listen"})
"""Methods that run no handler of an author."""


def with_remaining(method: str, params: dict[str, Any] | None, deadline: float) -> dict[str, Any] | None:
    """Return ``params`` with the time from now to ``deadline`` (`trio.current_time`) in ``_meta``. Without a deadline,
    or for a method with which no time travels, return ``params`` unchanged."""
    if deadline == math.inf or method in _AT_ONCE:
        return params
    params = params or {}
    left = deadline - trio.current_time()
    remaining = math.ceil(left * 1000) if left > 0 else 0  # left is -inf in a task that is cancelled already
    return {**params, "_meta": {REMAINING_MS: remaining, **(params.get("_meta") or {})}}


def deadline_of(meta: Mapping[str, Any]) -> float:
    """Return the time (`trio.current_time`) at which a request with ``meta``, received now, is over for its caller;
    `math.inf` when the caller gave no number of milliseconds, or no sensible number."""
    remaining = meta.get(REMAINING_MS)
    if type(remaining) is not int or not 0 <= remaining <= _LONGEST_REMAINING:
        return math.inf
    return trio.current_time() + remaining / 1000
