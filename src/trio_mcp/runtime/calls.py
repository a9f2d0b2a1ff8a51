"""Calls: requests of ours on their way to the peer and back.

A task waits for the end of a `Call`, whose caller gets a `Progress` for each report. No task waits for the end of a
request that is `DetachedCall`, and nobody for that of `send_ignoring_reply`.
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
"""Callback that runs in the reader with each notification of a stream and the notification's size in bytes. The
callback must be quick, and must not raise."""


@value
class CallOutcome:
    """The end of a call. ``notifications_before``: number of notifications belonging to requests that came before the
    end on the wire."""

    result: Any
    error: MCPError | None
    notifications_before: int = 0


@define(eq=False)
class RoundTrips:
    """A call that takes several requests, because the server asks questions in between (2026-07-28 mrtr)."""

    _cancel: Callable[[RequestId, BaseException], None]
    asked: RequestId | None = None
    """Id of the last request that was answered with questions; the server knows the call under this id until a later
    request reaches the server. `None`: the server knows of no request, or of a request that is in flight, or the call
    was left."""
    received: float = -inf
    """Time at which the last answer was read, on trio's clock; known for cacheable methods."""

    def cancel(self, error: BaseException) -> None:
        """Tell the server that the call ends with ``error``, if the server waits for the next request. Idempotent."""
        if self.asked is not None:
            self._cancel(self.asked, error)
            self.asked = None


class Call(Owner):
    """The mailbox of one request of ours: first the progress, then the end. ``backlog`` keeps the progress for a
    callback; `None` without a callback. ``deadline`` is the time on trio's clock at which the caller leaves the call at
    the latest.

    The caller's own task empties the mailbox, so that callbacks run where the caller can see their exceptions and
    cancel the callbacks.
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
        self.segments = []  # as an `Owner` makes, which would be two more calls
        self.request = request
        self.context: Context | None = copy_context()
        """Context variables of the caller, until the end of the call."""
        self.end: CallOutcome | None = None
        """The end; `None` while the request is in flight, and for ever when the request was abandoned."""
        self.ended_at = _NEVER
        """Time of the end on trio's clock, for methods whose answers may be cached; ``-inf`` for all others."""
        self.on_notification = on_notification
        """Callback for the notifications on the stream that the request opened."""
        self._on_progress = on_progress
        self.limited = deadline < inf
        """True for a call that ends by itself when no reply comes."""
        self.wants_progress = on_progress is not None
        """True when progress is consumed, by a callback or a time limit."""
        self._limits = call_limits()
        if self._limits:
            self.limited = True
            self._limits = tuple(limit for limit in self._limits if limit.restarts_on_progress)
            self.wants_progress |= bool(self._limits)
        self._items = backlog
        self._waiting = Sleeper()

    def receive_progress(self, progress: Progress, size: int) -> None:
        """Take progress that has arrived, ``size`` bytes long."""
        for limit in self._limits:
            limit.restart()
        if self._items is not None:
            self._items.put(progress, size)
            self._waiting.wake()

    def settle(self, end: CallOutcome) -> None:
        """Take the end, which has arrived by wire or by loss of the connection."""
        self.end = end
        if self.request.method.cacheable:
            self.ended_at = trio.current_time()
        self._waiting.wake()

    async def outcome(self) -> CallOutcome:
        """Wait for the end, running the callbacks in order meanwhile, and return the end."""
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
    """Sends the handler's own requests: `Outbound.request`."""

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
        """Send a request to ``outbox`` and wait for its result."""
        ...


class CallOwner(Protocol):
    """The party that has sent a request, and goes on with other things."""

    def receive_outcome(self, call: DetachedCall, result: Any, error: MCPError | None) -> None:
        """Take the end of a request, plain data or an error. Runs in the reader: must be quick, and must not raise."""
        ...


SendDetached: TypeAlias = "Callable[[str, dict[str, Any] | None, Revision, CallOwner, str, Outbox], DetachedCall]"
"""Sends a request of this method with these parameters to the outbox, and does not wait for the end, which the owner
gets: see `Outbound.send_detached`."""


class DetachedCall(Owner):
    """A request that ``owner`` has sent by ``outbox``, one of the ``calls`` in flight; ``name`` is for the poster.
    ``over`` is called at the end. Much smaller than a task that waits."""

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
        self.segments = []  # as an `Owner` makes, which would be two more calls
        self.request = request
        self.outbox = outbox
        """The way out of the request."""
        self.name = name
        self._calls = calls
        self._call_owner = owner
        self._abandon = abandon
        self._over = over

    def abandon(self, reason: str | BaseException) -> None:
        """Withdraw the request, or send its cancel: see `Outbound.abandon_detached`."""
        self._abandon(self, reason)

    def settle(self, end: CallOutcome) -> None:
        """Take the end, which has arrived by wire or by loss of the connection."""
        if self.finish(end.result, end.error):
            self._call_owner.receive_outcome(self, end.result, end.error)

    def finish(self, result: Any, error: BaseException | None) -> bool:
        """Note that the request is over. Return false where that was so before."""
        if self._calls.pop(self.request.id, None) is None:
            return False
        if self._over is not None:
            self._over(result, error)
        return True


@frozen
class Progress:
    """The progress of a call: ``progress`` only grows, ``total`` is in the same unit, ``message`` is for people."""

    progress: float
    total: float | None = None
    message: str | None = None


OnProgress: TypeAlias = Callable[[Progress], Awaitable[None] | None]
"""Callback that runs in the caller's own task, in wire order, before the call returns. May be async."""


def send_ignoring_reply(
    state: ConnectionState, outbox: Outbox, method: str, params: dict[str, Any], revision: Revision
) -> None:
    """Send a request ahead of all that waits, and even when ``outbox`` is full; its reply will be ignored. Synchronous,
    so that a task that is cancelled can send. Raises `MethodUnavailable`."""
    request = state.open_request(method, revision)
    state.abandon(request)
    outbox.put_request(request.id, method, params, None)
