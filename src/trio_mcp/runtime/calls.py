"""Calls: requests of ours on their way to the peer and back."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import trio

from ..jsonrpc.errors import MCPError
from ..jsonrpc.values import value
from .backlog import Backlog
from .outbox import Owner
from .sleeper import Sleeper
from .time_limits import call_limits

if TYPE_CHECKING:
    from ..jsonrpc.messages import RequestId
    from ..state.events import NotificationReceived
    from ..state.requests import OutboundRequest

__all__ = ["Call", "OnNotification", "OnProgress", "Progress", "RoundTrips", "Settled"]


@attrs.frozen
class Progress:
    """How far a call is: ``progress`` only grows, ``total`` is in the same unit, ``message`` is for people."""

    progress: float
    total: float | None = None
    message: str | None = None


OnProgress: TypeAlias = Callable[[Progress], Awaitable[None] | None]
"""Called in the caller's own task, in wire order, before the call returns. May be async."""

OnNotification: TypeAlias = "Callable[[NotificationReceived, int], None]"
"""Called in the reader with each notification of a stream and its size in bytes: it must be quick, and must not
raise."""


@value
class Settled:
    """The end of a call. ``after``: how many notifications that tell of requests came before it on the wire."""

    result: Any
    error: MCPError | None
    after: int = 0


@attrs.define(eq=False)
class RoundTrips:
    """One call in several requests, because its server asks in between (2026-07-28 mrtr)."""

    _cancel: Callable[[RequestId, BaseException], None]
    asked: RequestId | None = None
    """The last request that was answered by asking, while no later one has reached the server: under this id it
    knows the call. `None`: it knows of none, or of one that is in flight, or the call was left."""
    received: float = -inf
    """When the last answer was read, on trio's clock; told of cacheable methods."""

    def leave(self, error: BaseException) -> None:
        """The call ends with ``error``: tell the server, where it waits for the next request. Idempotent."""
        if self.asked is not None:
            self._cancel(self.asked, error)
            self.asked = None


class Call(Owner):
    """The mailbox of one request of ours: its progress, then its end. ``backlog`` keeps the progress, where anybody
    listens. ``deadline`` is when its caller leaves it at the latest, on trio's clock.

    The caller's own task empties it, so that callbacks run where the caller can see their exceptions and
    cancel them.
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
        request.waiter = self
        self.end: Settled | None = None
        """`None` while it is in flight, and for ever when it was abandoned."""
        self.ended = -inf
        """When it ended, on trio's clock, where that matters: for answers that may be kept."""
        self.on_notification = on_notification
        """Who gets what comes on the stream that the request opened."""
        self._on_progress = on_progress
        limits = call_limits()
        self.limited = deadline < inf or bool(limits)
        """Whether it ends by itself when nothing comes."""
        self._limits = tuple(limit for limit in limits if limit.renewed) if limits else ()
        self._items = backlog
        self._waiting = Sleeper()

    @property
    def wants_progress(self) -> bool:
        """Whether anybody cares."""
        return self._on_progress is not None or bool(self._limits)

    def progressed(self, progress: Progress, size: int) -> None:
        """Progress has arrived, ``size`` bytes long."""
        for limit in self._limits:
            limit.heard()
        if self._items is not None:
            self._items.put(progress, size)
            self._waiting.wake()

    def settle(self, end: Settled) -> None:
        """The end has arrived, by wire or by loss of the connection."""
        self.end = end
        if self.request.method.cacheable:
            self.ended = trio.current_time()
        self._waiting.wake()

    async def outcome(self) -> Settled:
        """Run the callbacks in order and return the end."""
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
