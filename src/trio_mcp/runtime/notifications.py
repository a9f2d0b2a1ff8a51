"""Notifications: NotificationQueue hands those of the peer to our callbacks, one after another; Announcements
sends those of ours that belong to no request.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from math import inf
from typing import Any, Final

import trio

from ..concurrency.bounded import Backlog
from ..concurrency.wakeups import OnDemandTask
from ..jsonrpc.codec import frame_notification
from ..state.events import NotificationReceived, PackedNotification
from .limits import Limits
from .outbox import Outbox, Segment

logger = logging.getLogger("trio_mcp")

_WORTH_PACKING: Final = 256
"""Bytes above which a notification waits as text. Shorter notifications take a few kilobytes each at most, and the
number that may wait is bounded."""

_inside: ContextVar[frozenset[int]] = ContextVar("trio_mcp.inside_callbacks", default=frozenset())


class NotificationQueue:
    """Keeps notifications in wire order, as many as ``backlog`` takes; dropped notifications are counted.

    ``handle`` gets one notification at a time. An exception of ``handle`` goes to ``failed``, and the next notification
    is handled. `wait_until_finished` waits up to ``grace`` seconds for each callback.
    """

    def __init__(
        self,
        backlog: Backlog[NotificationReceived | PackedNotification],
        handle: Callable[[NotificationReceived], Awaitable[None]],
        failed: Callable[[Exception], None],
        grace: float = inf,
    ) -> None:
        self._waiting = backlog
        self._handle = handle
        self._failed = failed
        self._grace = grace
        self.task = OnDemandTask()
        """Task that handles the notifications. The cancel of the task, at the end of the connection, ends the waits in
        `wait_until_handled` and `wait_until_finished`."""
        self._progressed = trio.lowlevel.ParkingLot()
        self._over = False
        self.received = 0
        """Number of notifications received so far."""
        self.handled = 0
        """Number of notifications handled or dropped so far."""
        self.dropped = 0
        self.running = 0
        """Number, counted from 1, of the callback that runs now; 0 while no callback runs."""
        self._begun = 0
        self._too_slow = 0
        """Number of the callback that was last reported for taking longer than the grace."""

    def put(self, event: NotificationReceived, size: int) -> None:
        """Add a notification that has arrived, ``size`` bytes long."""
        self.received += 1
        waits = size > _WORTH_PACKING and self.received - self.handled > 1
        if dropped := self._waiting.put(event.packed() if waits else event, size):
            self.dropped += dropped
            self.handled += dropped
            self._progressed.unpark_all()
        self.task.wake(self._run)

    async def _run(self) -> None:
        _inside.set(_inside.get() | {id(self)})
        waiting = self._waiting
        try:
            while True:
                while not waiting:
                    await self.task.sleep()
                event = waiting.pop()
                self._begun = self.running = self._begun + 1
                try:
                    await self._handle(event.unpacked() if isinstance(event, PackedNotification) else event)
                except Exception as error:
                    self._failed(error)
                self.running = 0
                self.handled += 1
                if self._progressed:
                    self._progressed.unpark_all()
        finally:
            self._over = True
            self._progressed.unpark_all()

    def detach(self) -> None:
        """Stop handling notifications, since the connection is over."""
        del self._handle

    async def wait_until_handled(self, count: int) -> None:
        """Wait until ``count`` notifications are handled or dropped. Return at once inside a callback, since the
        callback would wait for itself."""
        while self._is_behind(count):
            await self._progressed.park()

    def _is_behind(self, count: int) -> bool:
        return self.handled < count and not self._over and id(self) not in _inside.get()

    async def wait_until_finished(self, seen: int, count: int, running: int) -> None:
        """Wait for the callbacks of the notifications that came in the course of a request: up to ``count``, the first
        ``seen`` excepted.

        When the request was made, the callback of number ``running`` ran. While that callback still runs, there is no
        wait: the callback may itself be waiting for the request, by way of another task. A callback that was begun
        later may be waiting for the request, too, and there is no way to know. So the wait for each callback lasts no
        longer than the grace; then the callback is reported.
        """
        if count <= seen or (running and running == self.running):
            return
        number, deadline = 0, inf
        while self._is_behind(count):
            if number != self._running_or_next:
                number, deadline = self._running_or_next, trio.current_time() + self._grace
            with trio.CancelScope(deadline=deadline) as scope:
                await self._progressed.park()
            if scope.cancelled_caught and number == self._running_or_next:
                self._report(number)
                return

    @property
    def _running_or_next(self) -> int:
        """Number of the callback that runs; while no callback runs though one is due, the number of the next."""
        return self.running or self._begun + 1

    def _report(self, number: int) -> None:
        if number != self._too_slow:
            self._too_slow = number
            logger.warning(
                "a callback for a log message takes longer than %g s: answers wait for it no more", self._grace
            )


def notification_queue(
    limits: Limits, notified: Callable[[NotificationReceived], Awaitable[None]], grace: float = inf
) -> NotificationQueue:
    """Return a queue that hands one kind of notification to ``notified``. Each kind has a queue of its own: a flood of
    logs drops no change, and a slow callback for changes holds up no reply."""
    backlog = Backlog[NotificationReceived | PackedNotification](
        limits.max_pending_notifications, limits.max_inbound_bytes
    )
    return NotificationQueue(backlog, notified, report_failure, grace)


def report_failure(error: Exception) -> None:
    """Log an exception that a callback has raised."""
    logger.error("a notification callback failed", exc_info=error)


_KEPT: Final = 10_000


class Announcements:
    """Puts notifications into ``outbox``, each notification once."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: dict[bytes, Segment] = {}
        """Segments by the line that each holds; some segments may be taken by now."""

    def put(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification. Synchronous; raises `NotSerializable`.

        A notification that still waits to be written is not sent twice: a second copy would tell nothing new.
        """
        line = frame_notification(method, params) + b"\n"
        waiting = self._waiting.get(line)
        if waiting is not None and not waiting.taken:
            return
        if len(self._waiting) >= _KEPT:
            self._waiting = {key: segment for key, segment in self._waiting.items() if not segment.taken}
        self._waiting[line] = self._outbox.put_sealed(line)
