"""The abort signal of a request, for code that trio does not tell: threads, foreign code, and callers that ask why."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Generator
from typing import Any, Final, TypeVar

import trio

from ...concurrency.contexts import contextmanager
from .cancellation import DEADLINE_PASSED, CancelCause, Cancellation
from .handler_timeout import HandlerLimit

__all__ = ["NOT_WATCHED", "Abortable"]

T = TypeVar("T")

NOT_WATCHED: Final = trio.CancelScope()
"""Value of `Abortable.watching` once the handler has returned."""


class Abortable:
    """A request, as seen by code that wants to know whether it was cancelled."""

    __slots__ = ()

    due: float
    """Time at which the request is cancelled because its caller must have given up (`trio.current_time`)."""
    nursery: trio.Nursery | None
    _cancellation: Cancellation | None
    """Cancellation from outside: by the peer, the connection or the server. The request is answered no more."""
    _overdue: Cancellation | None
    """Cancellation by its own side: by its time limit, by its own scope, or because the handler is to run again. The
    request is answered."""
    limit: HandlerLimit | None
    """Limit of the handler's time, where there is one."""
    _event: threading.Event | None
    watching: trio.CancelScope | None
    """Scope of the task that sets `event` when the nursery is cancelled; `None` as long as no code has asked for
    `event`."""

    @property
    def is_cancelled(self) -> bool:
        """True once the request was cancelled, by whomever. May be read from any thread; never raises."""
        return self.cancellation is not None

    @property
    def cancellation(self) -> Cancellation | None:
        """The cause, reason and time of the cancel; `None` while there was none. May be read from any thread."""
        known, limit = self._cancellation or self._overdue, self.limit
        # Only trio's own thread can look at the clock; for other threads, `_watch` and `Deadlines` do.
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
        """Cancel the block, the handler's, after ``seconds``, as `trio.move_on_after`: `cancellation` and `event` tell
        of it, and the time in which the user of the client is asked does not count."""
        assert self.nursery is not None, "a handler runs inside the nursery"
        watching, limit = trio.CancelScope(), HandlerLimit(seconds)
        self.limit = limit
        self.nursery.start_soon(self._watch, limit, watching)
        try:
            with limit.scope:
                yield
        finally:
            if limit.scope.cancel_called:  # the handler may be woken, and leave, before the task that watches is
                self._passed(limit)
            watching.cancel(reason="the handler has ended")
            self.limit = None

    async def _watch(self, limit: HandlerLimit, watching: trio.CancelScope) -> None:
        with watching:
            await limit.passed()
            self._passed(limit)

    async def standing_still(self, asking: Awaitable[T]) -> T:
        """Return what ``asking`` the user of the client gives; the handler's time limit stands still meanwhile."""
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
        """The event that is set by a cancel, for foreign code and threads that can wait for nothing else."""
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
        """Set `event` when the nursery is cancelled: trio tells only the tasks inside, and this is one of them."""
        with watching:
            try:
                await trio.sleep_forever()
            finally:
                if not watching.cancel_called and self.cancellation is not None and self._event is not None:
                    self._event.set()


def _words_of(scope: trio.CancelScope) -> str | None:
    """Return the reason that `trio.CancelScope.cancel` was given; `None` where trio cancelled it, or without any."""
    # trio tells it only to the tasks that are cancelled, by an exception. The caller may clean up, or be another task.
    reason: Any = getattr(scope, "_cancel_reason", None)
    return reason.reason if reason is not None and reason.source == "explicit" else None
