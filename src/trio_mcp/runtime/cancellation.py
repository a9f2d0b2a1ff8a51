"""The cancellation of a request: its cause, the signal to the handler, and deadlines.

`AbortSignal` tells whether and why a request was cancelled, to trio and to code that trio cannot tell: threads, foreign
code, and callers that ask for the reason. `HandlerLimit` bounds how long a handler may take, not counting the time that
the user of the client takes.

The time that is left travels with a call, in its ``_meta``, under a key of ours. The value is a duration and no time of
day, so the clocks of the two sides need not agree. The receiver's deadline is later than the caller's, by the time that
the message took and by a grace, so no caller that still waits is left without a reply.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Generator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from ..classes import frozen
from ..concurrency.contexts import contextmanager
from ..concurrency.time_limits import TimeLimit
from ..jsonrpc.errors import CodedError, ProtocolViolation
from ..protocol.methods import METHODS

if TYPE_CHECKING:
    from ..concurrency.wakeups import Alarm

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
    """Another process runs the task now, since this process was taken for dead."""
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
    def words(self) -> str:
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


T = TypeVar("T")

_NOT_WATCHED: Final = trio.CancelScope()
"""Value of `AbortSignal._watching` once the handler has returned."""


class AbortSignal:
    """The abort signal of one request. The cancel scope of the nursery stops the handler and all tasks that the handler
    started."""

    __slots__ = ("_deadline", "_event", "_inside", "_limit", "_watching", "from_outside", "nursery")

    def __init__(self) -> None:
        self.nursery: trio.Nursery | None = None
        """Nursery of the handler; `None` until the handler runs, and again once the handler and all its tasks have
        ended."""
        self._deadline: Alarm | None = None
        self.from_outside: Cancellation | None = None
        """Cancellation from outside: by the peer, the connection or the server. The request gets no reply any more."""
        self._inside: Cancellation | None = None
        """Cancellation from inside: by the time limit, by the request's own scope, or because the handler is to run
        again. The request is answered."""
        self._limit: HandlerLimit | None = None
        """Limit of the handler's time, where there is one."""
        self._event: threading.Event | None = None
        self._watching: trio.CancelScope | None = None
        """Scope of the task that sets `event` when the nursery is cancelled; `None` as long as no code has asked for
        `event`."""

    # The handler, from its start to its end

    def enter(self, nursery: trio.Nursery) -> None:
        """Note that the handler runs in ``nursery`` from now on."""
        self.nursery = nursery
        if self._deadline is not None:  # calls that the handler makes learn of the deadline by the scope
            nursery.cancel_scope.deadline = self._deadline.due

    def handler_returned(self) -> None:
        """Note that the handler itself has returned: no task of ours is to keep its nursery open."""
        watching, self._watching = self._watching, _NOT_WATCHED
        if watching is not None:
            watching.cancel(reason="the handler has ended")

    def leave(self) -> bool:
        """Note that the handler and all its tasks have ended. Return true when the cause was a cancel of the nursery's
        scope, by any party."""
        nursery, self.nursery = self.nursery, None
        return nursery is not None and nursery.cancel_scope.cancelled_caught

    # The deadline of the caller

    @property
    def due(self) -> float:
        """Time at which the request is cancelled because its caller must have given up (`trio.current_time`)."""
        return math.inf if self._deadline is None else self._deadline.due

    @property
    def is_overdue(self) -> bool:
        """True once the time `due` has come, even if the alarm has not rung yet."""
        return self._deadline is not None and self._deadline.due <= trio.current_time()

    def set_deadline(self, alarm: Alarm | None) -> None:
        """Take ``alarm``, which cancels the request when its time has come, instead of the alarm before."""
        if self._deadline is not None:
            self._deadline.stop()
        self._deadline = alarm
        if self.nursery is not None:
            self.nursery.cancel_scope.deadline = self.due

    # Cancels

    def cancel(self, cancellation: Cancellation) -> bool:
        """Cancel the request from outside. Return false when the request was cancelled from outside before."""
        if self.from_outside is not None:
            return False
        self.from_outside = cancellation
        self._set_off(cancellation)
        return True

    def cancel_inside(self, cancellation: Cancellation) -> None:
        """Cancel the handler, but not the request, which is answered."""
        self._inside = cancellation
        self._set_off(cancellation)

    def _set_off(self, cancellation: Cancellation) -> None:
        if self._event is not None:
            self._event.set()
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel(reason=cancellation.words)

    def _note(self, cancellation: Cancellation) -> Cancellation:
        """Note a cancel of the handler that trio has carried out already."""
        self._inside = cancellation
        if self._event is not None:
            self._event.set()
        return cancellation

    @property
    def cancellation(self) -> Cancellation | None:
        """The cause, reason and time of the cancel; `None` while there was no cancel. May be read from any thread."""
        known, limit = self.from_outside or self._inside, self._limit
        # Only trio's own thread can look at the clock; for other threads, `_watch` and the alarm do.
        if known is not None or not trio.lowlevel.in_trio_run():
            return known
        if limit is not None and limit.scope.cancel_called:
            return self._passed(limit)
        if self.is_overdue:
            return Cancellation(CancelCause.DEADLINE, DEADLINE_PASSED, self.due)
        if self.nursery is not None and self.nursery.cancel_scope.cancel_called:
            scope = self.nursery.cancel_scope
            return self._note(Cancellation(CancelCause.PARENT, _words_of(scope), trio.current_time()))
        return None

    @property
    def is_cancelled(self) -> bool:
        """True once the request was cancelled, by any party. May be read from any thread; never raises."""
        return self.cancellation is not None

    @property
    def event(self) -> threading.Event:
        """The event that is set by a cancel, for foreign code and threads that can wait for nothing else."""
        event = self._event
        if event is None:
            event = self._event = threading.Event()
        if self.cancellation is not None:
            event.set()
        elif self._watching is None and self.nursery is not None and trio.lowlevel.in_trio_task():
            self._watching = trio.CancelScope()
            self.nursery.start_soon(self._watch_nursery, self._watching)
        return event

    async def _watch_nursery(self, watching: trio.CancelScope) -> None:
        """Set `event` when the nursery is cancelled: trio tells only tasks inside of the nursery, so one such task runs
        this method."""
        with watching:
            try:
                await trio.sleep_forever()
            finally:
                if not watching.cancel_called and self.cancellation is not None and self._event is not None:
                    self._event.set()

    # The time limit of a tool

    @property
    def has_time_limit(self) -> bool:
        """True inside of `move_on_after`."""
        return self._limit is not None

    @contextmanager
    def move_on_after(self, seconds: float) -> Generator[None]:
        """Cancel the block, which runs the handler, after ``seconds``, as `trio.move_on_after` does. `cancellation` and
        `event` tell of the cancel, and time in which the user of the client is asked does not count."""
        assert self.nursery is not None, "a handler runs inside the nursery"
        watching, limit = trio.CancelScope(), HandlerLimit(seconds)
        self._limit = limit
        self.nursery.start_soon(self._watch, limit, watching)
        try:
            with limit.scope:
                yield
        finally:
            if limit.scope.cancel_called:  # the handler may wake, and leave, before the task that watches
                self._passed(limit)
            watching.cancel(reason="the handler has ended")
            self._limit = None

    async def _watch(self, limit: HandlerLimit, watching: trio.CancelScope) -> None:
        with watching:
            await limit.passed()
            self._passed(limit)

    def _passed(self, limit: HandlerLimit) -> Cancellation:
        return self._note(Cancellation(CancelCause.DEADLINE, "the time limit of the tool was over", limit.deadline))

    async def standing_still(self, asking: Awaitable[T]) -> T:
        """Return the answer of ``asking`` the user of the client; the handler's time limit stands still meanwhile."""
        assert self._limit is not None, "it has a limit"
        with self._limit.standing_still():
            return await asking


def _words_of(scope: trio.CancelScope) -> str | None:
    """Return the reason that `trio.CancelScope.cancel` was given; `None` where trio itself cancelled, or without a
    reason."""
    # trio tells the reason only to the cancelled tasks, in an exception. The caller may be in its cleanup, or be
    # another task.
    reason: Any = getattr(scope, "_cancel_reason", None)
    return reason.reason if reason is not None and reason.source == "explicit" else None


class HandlerLimit:
    """A limit of ``seconds`` for the code that runs in ``scope``. The limit stands still while the user of the client
    is asked, as a client's own limits do (`fail_after_work`)."""

    def __init__(self, seconds: float) -> None:
        self.scope = trio.CancelScope()
        self._limit = TimeLimit(self.scope, seconds, math.inf, math.inf, renewed=False)
        self._moved = trio.Event()

    @property
    def deadline(self) -> float:
        """Time of `trio.current_time` at which the limit is over, unless the user is asked before."""
        return self._limit.deadline

    @contextmanager
    def standing_still(self) -> Generator[None]:
        """Stop the clock of the limit while the block runs."""
        self._limit.pause()
        try:
            yield
        finally:
            self._limit.resume()
            self._moved.set()

    async def passed(self) -> None:
        """Wait until the limit is over."""
        while trio.current_time() < self.deadline:
            self._moved = trio.Event()
            with trio.move_on_at(self.deadline):
                await self._moved.wait()


REMAINING_MS: Final = "trio-mcp/remainingMs"
"""Whole milliseconds until the caller gives up, counted from the arrival of the request; 0 and more."""

_LONGEST_REMAINING: Final = 10**12
_AT_ONCE: Final = frozenset({"initialize", "server/discover", "ping", "subscriptions/listen"})
"""Methods that run no handler of an author."""
_TRAVELS_WITH: Final = frozenset(METHODS) - _AT_ONCE


def with_remaining(method: str, params: dict[str, Any] | None, deadline: float) -> dict[str, Any] | None:
    """Return ``params`` with the time from now to ``deadline`` (`trio.current_time`) in ``_meta``. Without a deadline,
    or for a method with which no time travels, return ``params`` unchanged."""
    if deadline == math.inf or method not in _TRAVELS_WITH:
        return params
    params = params or {}
    left = deadline - trio.current_time()
    remaining = math.ceil(left * 1000) if left > 0 else 0  # left is -inf in a task that is cancelled already
    return {**params, "_meta": {REMAINING_MS: remaining, **(params.get("_meta") or {})}}


def due_of(meta: Mapping[str, Any]) -> float:
    """Return the time (`trio.current_time`) at which a request with ``meta``, received now, is over for its caller;
    `math.inf` when the caller gave no number of milliseconds, or no sensible number."""
    remaining = meta.get(REMAINING_MS)
    if type(remaining) is not int or not 0 <= remaining <= _LONGEST_REMAINING:
        return math.inf
    return trio.current_time() + remaining / 1000
