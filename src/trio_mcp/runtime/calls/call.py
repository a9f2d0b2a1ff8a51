"""Calls: requests of ours on their way to the peer and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import trio

from ...concurrency.backlog import Backlog
from ...concurrency.time_limits import call_limits
from ...concurrency.wakeups import Sleeper
from ...jsonrpc.errors import MCPError
from ...jsonrpc.messages import value
from ..on_progress import OnProgress, Progress
from ..outbox import Owner

if TYPE_CHECKING:
    from ...jsonrpc.messages import RequestId
    from ...state.events import NotificationReceived
    from ...state.requests import OutboundRequest

OnNotification: TypeAlias = "Callable[[NotificationReceived, int], None]"
"""Callback that runs in the reader with each notification of a stream and the notification's size in bytes. The
callback must be quick, and must not raise."""


@value
class Settled:
    """The end of a call. ``after``: number of notifications belonging to requests that came before the end on the
    wire."""

    result: Any
    error: MCPError | None
    after: int = 0


@attrs.define(eq=False)
class RoundTrips:
    """A call that takes several requests, because the server asks questions in between (2026-07-28 mrtr)."""

    _cancel: Callable[[RequestId, BaseException], None]
    asked: RequestId | None = None
    """Id of the last request that was answered with questions; the server knows the call under this id until a later
    request reaches the server. `None`: the server knows of no request, or of a request that is in flight, or the call
    was left."""
    received: float = -inf
    """Time at which the last answer was read, on trio's clock; known for cacheable methods."""

    def leave(self, error: BaseException) -> None:
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
        "_items",
        "_limits",
        "_on_progress",
        "_waiting",
        "end",
        "ended",
        "limited",
        "on_notification",
        "request",
        "wants_progress",
    )

    def __init__(
        self,
        request: OutboundRequest,
        on_progress: OnProgress | None,
        backlog: Backlog[Progress] | None,
        on_notification: OnNotification | None = None,
        deadline: float = inf,
    ) -> None:
        super().__init__()
        self.request = request
        self.end: Settled | None = None
        """The end; `None` while the request is in flight, and for ever when the request was abandoned."""
        self.ended = -inf
        """Time of the end on trio's clock, for methods whose answers may be cached; ``-inf`` for all others."""
        self.on_notification = on_notification
        """Callback for the notifications on the stream that the request opened."""
        self._on_progress = on_progress
        limits = call_limits()
        self.limited = deadline < inf or bool(limits)
        """True for a call that ends by itself when no reply comes."""
        self._limits = tuple(limit for limit in limits if limit.renewed) if limits else ()
        self.wants_progress = on_progress is not None or bool(self._limits)
        """True when progress is consumed, by a callback or a time limit."""
        self._items = backlog
        self._waiting = Sleeper()

    def progressed(self, progress: Progress, size: int) -> None:
        """Take progress that has arrived, ``size`` bytes long."""
        for limit in self._limits:
            limit.heard()
        if self._items is not None:
            self._items.put(progress, size)
            self._waiting.wake()

    def settle(self, end: Settled) -> None:
        """Take the end, which has arrived by wire or by loss of the connection."""
        self.end = end
        if self.request.method.cacheable:
            self.ended = trio.current_time()
        self._waiting.wake()

    async def outcome(self) -> Settled:
        """Wait for the end, running the callbacks in order meanwhile, and return the end."""
        while True:
            while self._items:
                await self._tell(self._items.take())
            if self.end is not None:
                return self.end
            await self._waiting.sleep()

    async def _tell(self, progress: Progress) -> None:
        if self._on_progress is not None:
            pending = self._on_progress(progress)
            if inspect.isawaitable(pending):
                await pending
