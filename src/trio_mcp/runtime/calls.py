"""Outgoing requests: each request is tracked from when it is sent until its reply, its cancellation, or the loss of the
connection.

A task waits for the outcome of a `Call`, and its caller gets a `Progress` for each progress notification. No task waits
for a `DetachedCall`. The reply to a request of `send_ignoring_reply` is ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

import trio

from ..classes import define, frozen, value
from ..concurrency.bounded import Backlog
from ..concurrency.time_limits import call_limits
from ..concurrency.wakeups import Sleeper
from ..jsonrpc.errors import MCPError
from .outbox import Outbox, Owner

if TYPE_CHECKING:
    from ..jsonrpc.messages import RequestId
    from ..protocol.revisions import Revision
    from ..state.connection import ConnectionState
    from ..state.events import NotificationReceived
    from ..state.requests import OutboundRequest

_NEVER: Final = -inf

OnNotification: TypeAlias = "Callable[[NotificationReceived, int], None]"
"""Callback for each notification on a stream. The reader task calls the callback with the notification and its size in
bytes. The callback must be quick, and must not raise."""


@value
class CallOutcome:
    """How an outgoing request ended: with a result or with an error.

    ``notifications_before`` is the number of notifications about requests that arrived before the outcome.
    """

    result: Any
    error: MCPError | None
    notifications_before: int = 0


@define(eq=False)
class RoundTrips:
    """One call of a client, such as ``tools/call``, with all its requests. If a server answers a request with input
    requests such as elicitation, the client retries with the user's answers (2026-07-28 mrtr)."""

    _cancel: Callable[[RequestId, BaseException], None]
    asked: RequestId | None = None
    """Id of the last request that the server answered with input requests. The server identifies the call by this id
    until it gets a later request. `None` if no request was answered with input requests, if a request is in flight, or
    if the caller has left the call."""
    received: float = -inf
    """Time on trio's clock at which the client read the last response. Set only for methods whose results can be
    cached."""

    def cancel(self, error: BaseException) -> None:
        """If the server has answered this call with input requests and waits for the client's retry, send the server a
        cancellation of the call. ``error`` is its cause.

        Idempotent.
        """
        if self.asked is not None:
            self._cancel(self.asked, error)
            self.asked = None


class Call(Owner):
    """An outgoing request whose sender waits for the outcome. While it waits, the sender can get progress
    notifications.

    ``backlog`` stores progress for a callback; it's `None` if there is no callback. ``deadline`` is the time on trio's
    clock at which the caller leaves the call at the latest.

    The caller's own task runs the progress callbacks, so that the caller sees their exceptions and can cancel them.
    """

    __slots__ = (
        *("_items", "_limits", "_on_progress", "_waiting", "context", "end", "ended_at", "limited", "on_notification"),
        *("request", "wants_progress"),
    )

    def __init__(
        self,
        request: OutboundRequest,
        on_progress: OnProgress | None,
        backlog: Backlog[Progress] | None,
        on_notification: OnNotification | None = None,
        deadline: float = inf,
    ) -> None:
        self.segments = []  # same statements as in `Owner.__init__`, inlined to save two function calls
        self.request = request
        self.context: Context | None = copy_context()
        """Context variables of the caller's task. `None` after the call has ended."""
        self.end: CallOutcome | None = None
        """The outcome of the call. `None` while the request is in flight, and always if the caller abandoned the
        request."""
        self.ended_at = _NEVER
        """Time on trio's clock at which the outcome arrived, for methods whose results can be cached. ``-inf`` for all
        other methods."""
        self.on_notification = on_notification
        """Callback for the notifications on the stream that the request opened."""
        self._on_progress = on_progress
        self.limited = deadline < inf
        """True if the call has a time limit, and therefore ends even if no reply arrives."""
        self.wants_progress = on_progress is not None
        """True if a callback or a time limit uses the progress notifications of the call."""
        self._limits = call_limits()
        if self._limits:
            self.limited = True
            self._limits = tuple(limit for limit in self._limits if limit.restarts_on_progress)
            self.wants_progress |= bool(self._limits)
        self._items = backlog
        self._waiting = Sleeper()

    def receive_progress(self, progress: Progress, size: int) -> None:
        """Handle a progress notification of this call. ``size`` is the notification's length in bytes."""
        for limit in self._limits:
            limit.restart()
        if self._items is not None:
            self._items.put(progress, size)
            self._waiting.wake()

    def settle(self, end: CallOutcome) -> None:
        """Set the outcome of the call, because the reply has arrived or the connection was lost."""
        self.end = end
        if self.request.method.cacheable:
            self.ended_at = trio.current_time()
        self._waiting.wake()

    async def outcome(self) -> CallOutcome:
        """Wait for the outcome of the call, and return it. While waiting, run the progress callbacks in order."""
        while True:
            while self._items:
                await self._report_progress(self._items.pop())
            if self.end is not None:
                return self.end
            await self._waiting.sleep()

    async def _report_progress(self, progress: Progress) -> None:
        if self._on_progress is not None:
            pending = self._on_progress(progress)
            if inspect.isawaitable(pending):
                await pending


class Ask(Protocol):
    """Type of the function with which handlers send requests to the peer: see `Outbound.request`."""

    def __call__(
        self,
        method: str,
        params: dict[str, Any] | None,
        revision: Revision,
        on_progress: OnProgress | None = None,
        /,
        *,
        outbox: Outbox,
        cancel_task: Callable[[str], None] | None = None,
    ) -> Awaitable[Any]:
        """Send a request through ``outbox``, wait for its result, and return the result as plain data."""
        ...


class CallOwner(Protocol):
    """The sender of a `DetachedCall`, a request for which no task waits. When the request ends, its outcome is passed
    to `receive_outcome`."""

    def receive_outcome(self, call: DetachedCall, result: Any, error: MCPError | None) -> None:
        """Handle the outcome of a request: plain data or an error.

        The reader task calls this method, which must be quick and must not raise.
        """
        ...


SendDetached: TypeAlias = "Callable[[str, dict[str, Any] | None, Revision, CallOwner, str, Outbox], DetachedCall]"
"""Function that sends a request through an outbox without waiting. It takes the method, the parameters and the owner,
which later gets the outcome: see `Outbound.send_detached`."""


class DetachedCall(Owner):
    """An outgoing request for whose response no trio task waits. ``owner`` sent the request through ``outbox``, and is
    called with its outcome.

    A `DetachedCall` takes much less memory than a waiting task. ``calls`` are the calls in flight. ``name`` identifies
    the request for its sender. ``over`` is called with the outcome.
    """

    __slots__ = ("_abandon", "_call_owner", "_calls", "_over", "name", "outbox", "request")

    on_notification: ClassVar[None] = None
    limited: ClassVar[bool] = False

    def __init__(
        self,
        request: OutboundRequest,
        calls: dict[RequestId, Any],
        outbox: Outbox,
        owner: CallOwner,
        name: str,
        abandon: Callable[[DetachedCall, str | BaseException], None],
        over: Callable[[Any, BaseException | None], None] | None,
    ) -> None:
        self.segments = []  # same statements as in `Owner.__init__`, inlined to save two function calls
        self.request = request
        self.outbox = outbox
        """The outbox through which the request was sent."""
        self.name = name
        self._calls = calls
        self._call_owner = owner
        self._abandon = abandon
        self._over = over

    def abandon(self, reason: str | BaseException) -> None:
        """Withdraw the request if it hasn't been sent yet. Otherwise, send a cancellation of the request.

        See `Outbound.abandon_detached`.
        """
        self._abandon(self, reason)

    def settle(self, end: CallOutcome) -> None:
        """Set the outcome of the request, because the reply has arrived or the connection was lost."""
        if self.finish(end.result, end.error):
            self._call_owner.receive_outcome(self, end.result, end.error)

    def finish(self, result: Any, error: BaseException | None) -> bool:
        """Remove this request from the pending calls, because it ended with ``result`` or ``error``.

        Return false if the request had already ended.
        """
        if self._calls.pop(self.request.id, None) is None:
            return False
        if self._over is not None:
            self._over(result, error)
        return True


@frozen
class Progress:
    """The values in one progress notification, which the peer sent about an outgoing call."""

    progress: float
    """Progress so far, which increases with each notification."""
    total: float | None = None
    """Value of ``progress`` at the end, in the same unit; `None` if unknown."""
    message: str | None = None
    """Description of the current progress, for people; `None` if there is none."""


OnProgress: TypeAlias = Callable[[Progress], Awaitable[None] | None]
"""Callback for progress notifications. It's called in the caller's own task, in the order of arrival, before the call
returns. It can be async."""


def send_ignoring_reply(
    state: ConnectionState, outbox: Outbox, method: str, params: dict[str, Any], revision: Revision
) -> None:
    """Send a request, and ignore its reply when it arrives.

    The request goes before all queued messages, even if ``outbox`` is full. Synchronous, so that a cancelled task can
    call it. Raises `MethodUnavailable` if the protocol revision doesn't have the method.
    """
    request = state.open_request(method, revision)
    state.abandon(request)
    outbox.put_request(request.id, method, params, None)
