"""Outbound: requests of ours, from the moment they are wanted to their end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import trio

from ..jsonrpc.codec import frame_notification, frame_request
from ..jsonrpc.errors import MCPError, NotSerializable
from ..spec.meta import PROGRESS_TOKEN
from .backlog import Backlog
from .calls import Call, OnProgress, Progress, Settled
from .cancellation import reason_of
from .channel import ConnectionLost
from .request_scope import current_request

if TYPE_CHECKING:
    from ..spec.revisions import Revision
    from ..state.connection_state import ConnectionState
    from .limits import Limits
    from .notifications import NotificationQueue
    from .outbox import Outbox

__all__ = ["REQUEST_MARKS", "Outbound"]

REQUEST_MARKS: Final = 4
"""Requests and responses wait for room at this many high-water marks."""


class Outbound:
    """Sends requests and waits for their results."""

    def __init__(
        self, state: ConnectionState, outbox: Outbox, notifications: NotificationQueue, limits: Limits
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._notifications = notifications
        self._limits = limits
        self._over: ConnectionLost | None = None
        self._waiting: set[trio.CancelScope] = set()

    async def request(
        self, method: str, params: dict[str, Any] | None, revision: Revision, on_progress: OnProgress | None = None, /
    ) -> Any:
        """See `DuplexChannel.request`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._over is None and self._outbox.is_full(REQUEST_MARKS):
            await self._wait_for_room()
        if self._over is not None:
            raise _again(self._over)
        params = _carrying_trace(params)
        request = self._state.open_request(method, revision)
        backlog = Backlog[Progress](self._limits.max_pending_notifications, self._limits.max_inbound_bytes)
        call = Call(request, on_progress, backlog)
        try:
            if call.wants_progress:
                params = dict(params or {})
                params["_meta"] = {**params.get("_meta", {}), PROGRESS_TOKEN: request.id}
            self._outbox.put_sealed(frame_request(request.id, method, params) + b"\n", call)
            end = await call.outcome()
        except BaseException as error:
            self._abandon(call, error)
            raise
        finally:
            request.waiter = None  # each knows the other, and neither is to wait for the garbage collector
        await self._notifications.caught_up(end.after)
        if end.error is not None:
            raise _again(end.error)
        return end.result

    async def _wait_for_room(self) -> None:
        """Wait for room, or for the end of the connection: after that there will be none."""
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                await self._outbox.room(REQUEST_MARKS)
            finally:
                self._waiting.discard(scope)

    def _abandon(self, call: Call, error: BaseException) -> None:
        request = call.request
        if not self._state.abandon(request) or self._outbox.withdraw(call) or isinstance(error, NotSerializable):
            return
        params = {"requestId": request.id, "reason": _cancel_reason(error)}
        # Ahead of all that waits, and even when the outbox is full (DESIGN rulings 3 and 4).
        with contextlib.suppress(NotSerializable):  # a reason that is no text is not worth a word
            self._outbox.put_first(frame_notification("notifications/cancelled", params) + b"\n")

    def fail_all(self, error: ConnectionLost) -> None:
        """No reply will ever come: all that wait get ``error``, and so does whoever asks from now on."""
        self._over = self._over or error
        for request in self._state.abandon_all():
            request.waiter.settle(Settled(None, error))
        for scope in tuple(self._waiting):
            scope.cancel(reason=error.reason)


def _carrying_trace(params: dict[str, Any] | None) -> dict[str, Any] | None:
    """``params`` with the trace context of the inbound request we are working for, if it has one."""
    scope = current_request.get(None)
    trace = None if scope is None else scope.trace
    if trace is None:
        return params
    params = params or {}
    return {**params, "_meta": trace.carried_by(params.get("_meta") or {})}


def _cancel_reason(error: BaseException) -> str:
    """The reason of the inbound request we are working for, where that was cancelled, else our own."""
    scope = current_request.get(None)
    cancellation = scope.cancellation if scope is not None else None
    if cancellation is not None and cancellation.reason is not None:
        return cancellation.reason
    return reason_of(error)


def _again(error: MCPError) -> MCPError:
    """A fresh exception of the same kind for each that waits, so that tracebacks do not pile up on one."""
    fresh = error.__class__.__new__(error.__class__)
    fresh.__dict__.update(error.__dict__)
    fresh.args = error.args
    return fresh
