"""Queues of received notifications, and sending of notifications that aren't about a request.

`NotificationQueue` passes the peer's notifications to callbacks, one after another. `Announcements` sends notifications
that aren't about a request.
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
"""Size in bytes above which a waiting notification is kept as text to save memory. Shorter notifications take a few
kilobytes each at most, and the number that can wait is limited."""

_inside: ContextVar[frozenset[int]] = ContextVar("trio_mcp.inside_callbacks", default=frozenset())


class NotificationQueue:
    """Received notifications that wait for a callback, in order of arrival.

    ``backlog`` limits how many notifications can wait. If there are more, some notifications are dropped and counted.

    ``handle`` gets one notification at a time. If ``handle`` raises, the exception goes to ``failed``, and the next
    notification is handled. `wait_until_finished` waits up to ``grace`` seconds for each callback.
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
        """The task that calls the notification callbacks. The end of the connection cancels this task, which also ends
        the waits in `wait_until_handled` and `wait_until_finished`."""
        self._progressed = trio.lowlevel.ParkingLot()
        self._over = False
        self.received = 0
        """Number of notifications received so far."""
        self.handled = 0
        """Number of notifications handled or dropped so far."""
        self.dropped = 0
        self.running = 0
        """Number of the callback that is running, counted from 1. 0 while no callback runs."""
        self._begun = 0
        self._too_slow = 0
        """Number of the callback that was last logged because it took longer than ``grace``."""

    def put(self, event: NotificationReceived, size: int) -> None:
        """Add a received notification to the queue. ``size`` is the notification's length in bytes."""
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
        """Drop the reference to the notification callback, because the connection has ended."""
        del self._handle

    async def wait_until_handled(self, count: int) -> None:
        """Wait until the first ``count`` notifications of the connection have been handled or dropped.

        When called from a notification callback, return at once, because the callback would wait for itself.
        """
        while self._is_behind(count):
            await self._progressed.park()

    def _is_behind(self, count: int) -> bool:
        return self.handled < count and not self._over and id(self) not in _inside.get()

    async def wait_until_finished(self, seen: int, count: int, running: int) -> None:
        """Wait until the callbacks of all notifications that arrived during a request have returned.

        The connection numbers its notifications: those that arrived during the request have the numbers ``seen + 1`` to
        ``count``.

        ``running`` is the number of the callback that ran when the request was made. If that callback still runs, don't
        wait: it may itself be waiting for the request, through another task. A callback that started later may be
        waiting for the request as well, which can't be detected. So the wait for each callback is limited to the grace;
        after that, the callback is logged.
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
        """Sequence number of the notification whose callback is running. If no callback is running, the sequence number
        of the next notification."""
        return self.running or self._begun + 1

    def _report(self, number: int) -> None:
        if number != self._too_slow:
            self._too_slow = number
            logger.warning(
                "a callback for a log message takes longer than %g s: results no longer wait for it", self._grace
            )


def notification_queue(
    limits: Limits, notified: Callable[[NotificationReceived], Awaitable[None]], grace: float = inf
) -> NotificationQueue:
    """Return a queue that passes received notifications of one kind to the callback ``notified``.

    Each kind has its own queue, so that many log messages don't displace change notifications, and a slow callback for
    changes doesn't delay replies.
    """
    backlog = Backlog[NotificationReceived | PackedNotification](
        limits.max_pending_notifications, limits.max_inbound_bytes
    )
    return NotificationQueue(backlog, notified, report_failure, grace)


def report_failure(error: Exception) -> None:
    """Log an exception that a notification callback raised."""
    logger.error("a notification callback failed", exc_info=error)


_KEPT: Final = 10_000


class Announcements:
    """Puts notifications into ``outbox``, except if an equal notification already waits there."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: dict[bytes, Segment] = {}
        """Outbox segments of the notifications that wait, by the notification's line. The writer task may already have
        taken some of them."""

    def put(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification without waiting.

        Raises `NotSerializable` if the notification's parameters can't be encoded as JSON. If an equal notification
        still waits to be written, nothing is added, since a duplicate carries no information.
        """
        line = frame_notification(method, params) + b"\n"
        waiting = self._waiting.get(line)
        if waiting is not None and not waiting.taken:
            return
        if len(self._waiting) >= _KEPT:
            self._waiting = {key: segment for key, segment in self._waiting.items() if not segment.taken}
        self._waiting[line] = self._outbox.put_sealed(line)
