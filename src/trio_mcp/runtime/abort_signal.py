"""The abort signal of a request, for those who are not told by trio: threads, foreign code, and whoever asks why."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Generator
from typing import Any, Final, TypeVar

import trio

from ..jsonrpc.contexts import contextmanager
from .cancellation import DEADLINE_PASSED, CancelCause, Cancellation
from .handler_limit import HandlerLimit

__all__ = ["NOT_WATCHED", "Abortable"]

T = TypeVar("T")

NOT_WATCHED: Final = trio.CancelScope()
"""In the place of `Abortable.watching`, once the handler has returned."""


class Abortable:
    """A request, as those see it who want to know whether it was cancelled."""

    __slots__ = ()

    due: float
    """When it is cancelled because its caller must have given up (`trio.current_time`)."""
    nursery: trio.Nursery | None
    _cancellation: Cancellation | None
    """By anybody but its own side."""
    _overdue: Cancellation | None
    """By its own side: by its time limit, by its own scope, or because it is to run again. It is answered."""
    limit: HandlerLimit | None
    """Of the handler's time, where there is one."""
    _event: threading.Event | None
    watching: trio.CancelScope | None
    """Of the task that sets `event` when the nursery is cancelled; `None` as long as nobody has asked for that."""

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled, by whom ever. May be read from any thread; never raises."""
        return self.cancellation is not None

    @property
    def cancellation(self) -> Cancellation | None:
        """Why it was cancelled; `None` while it is not. May be read from any thread."""
        known, limit = self._cancellation or self._overdue, self.limit
        # Only trio's own thread can look at the clock; the others are told by `_watch` and `Deadlines`.
        if known is not None or not trio.lowlevel.in_trio_run():
            return known
        if limit is not None and limit.scope.cancel_called:
            self._passed(limit)
            return self._overdue
        if self.due <= trio.current_time():
            return Cancellation(CancelCause.DEADLINE, DEADLINE_PASSED, self.due)
        if self.nursery is not None and self.nursery.cancel_scope.cancel_called:
            self._own(Cancellation(CancelCause.PARENT, _words_of(self.nursery.cancel_scope), trio.current_time()))
            return self._overdue
        return None

    @contextmanager
    def move_on_after(self, seconds: float) -> Generator[None]:
        """As `trio.move_on_after`, for the handler: `cancellation` and `event` tell of it, and the time in which the
        user of the client is asked does not count."""
        assert self.nursery is not None, "a handler runs inside the nursery"
        watching, limit = trio.CancelScope(), HandlerLimit(seconds)
        self.limit = limit
        self.nursery.start_soon(self._watch, limit, watching)
        try:
            with limit.scope:
                yield
        finally:
            if limit.scope.cancel_called:  # the handler may be woken, and leave, before the one who watches is
                self._passed(limit)
            watching.cancel(reason="the handler has ended")
            self.limit = None

    async def _watch(self, limit: HandlerLimit, watching: trio.CancelScope) -> None:
        with watching:
            await limit.passed()
            self._passed(limit)

    async def standing_still(self, asking: Awaitable[T]) -> T:
        """Wait for the user of the client; the time limit of the handler stands still meanwhile."""
        assert self.limit is not None, "it has a limit"
        with self.limit.standing_still():
            return await asking

    def _passed(self, limit: HandlerLimit) -> None:
        self._own(Cancellation(CancelCause.DEADLINE, "the time limit of the tool was over", limit.deadline))

    def _own(self, cancellation: Cancellation) -> None:
        self._overdue = cancellation
        if self._event is not None:
            self._event.set()

    @property
    def event(self) -> threading.Event:
        """Set when it is cancelled, for foreign code and threads that can wait for nothing else."""
        event = self._event
        if event is None:
            event = self._event = threading.Event()
        if self.cancellation is not None:
            event.set()
        elif self.watching is None and self.nursery is not None and trio.lowlevel.in_trio_task():
            self.watching = trio.CancelScope()
            self.nursery.start_soon(self._watch_nursery, self.watching)
        return event

    async def _watch_nursery(self, watching: trio.CancelScope) -> None:
        """trio tells nobody that a scope was cancelled but the tasks inside, so one of them sets `event`."""
        with watching:
            try:
                await trio.sleep_forever()
            finally:
                if not watching.cancel_called and self.cancellation is not None and self._event is not None:
                    self._event.set()


def _words_of(scope: trio.CancelScope) -> str | None:
    """Return the reason that `trio.CancelScope.cancel` was given; `None` where trio cancelled it, or without any."""
    # trio tells it to those only who are cancelled, by an exception. Who asks may clean up, or run in another task.
    reason: Any = getattr(scope, "_cancel_reason", None)
    return reason.reason if reason is not None and reason.source == "explicit" else None
