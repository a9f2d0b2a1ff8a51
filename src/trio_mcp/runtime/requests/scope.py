"""`RequestScope` manages one inbound request until it has ended: its phase, nursery, cancellation, time limits, and
messages to its client."""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from ...concurrency.contexts import contextmanager
from ...concurrency.time_limits import HandlerLimit
from ...jsonrpc.codec import encode_value, frame_notification
from ...protocol.meta import with_related_task
from ...state.requests import PHASE_AFTER, IllegalStep, InboundRequest, Phase, Step
from ..cancellation import DEADLINE_PASSED, REMAINING_MS, CancelCause, Cancellation, deadline_of
from ..outbox import LINE_END, REQUEST_MARKS, Owner
from .reports import ProgressReporter, RequestLog

if TYPE_CHECKING:
    from ...concurrency.wakeups import Alarm
    from ...protocol.fields import JSONObject
    from ...protocol.revisions import Revision
    from ...tasks.request_task import RequestTask
    from ..calls import OnProgress
    from ..exchange import Exchange
    from .admission import Ticket
    from .endings import Ending
    from .rounds import Rounds
    from .runner import RequestRunner

T = TypeVar("T")

current_request: ContextVar[RequestScope] = ContextVar("trio_mcp.current_request")
"""Context variable with the request whose handler is running. It is also set in the handler's child tasks and worker
threads."""


_WAITING: Final = Phase.WAITING
_RUNNING: Final = Phase.RUNNING
_MUTED: Final = Phase.MUTED
_HANDLER_RETURNED: Final = trio.CancelScope()
"""Value of `RequestScope._watching` after the handler has returned."""


class RequestScope:
    """One incoming request with all its retries, from its arrival until its handler and all tasks of the handler have
    ended.

    The cancel scope of its nursery is the abort signal. `cancel` stops the handler, the tasks that the handler started
    in the nursery, and the requests that it has sent and waits for. `cancellation` and `event` are for code that trio
    can't cancel, such as threads and foreign code, and for callers that need the reason. The request belongs to
    ``exchange``, and ``runner`` runs it. The client can retry on another exchange (`bind`).
    """

    __slots__ = (
        *("__weakref__", "_deadline", "_event", "_inside", "_limit", "_log", "_reply_wait", "_reporter", "_watching"),
        *("announces", "answered_instead", "begun", "cleanup_alarm", "ending", "exchange", "from_outside"),
        *("handler_task", "line_end", "lines", "nursery", "outbox", "phase", "request", "rounds", "runner", "sends"),
        *("task", "ticket"),
    )

    def __init__(self, runner: RequestRunner, exchange: Exchange, request: InboundRequest, ticket: Ticket) -> None:
        self.runner = runner
        self.exchange = exchange
        self.outbox = exchange.outbox
        """The outbox of the exchange that the request currently belongs to."""
        self.request = request
        """The request that will be answered next. A retry of the client replaces it."""
        self.ticket = ticket
        """Records what the request counts towards the limits."""
        self.phase = _WAITING
        """Phase of the request, from the table of `trio_mcp.state.requests`. Only `advance` changes it."""
        self.sends = False
        """True if the request's notifications and requests to the client are still sent."""
        self.announces = False
        """True if the handler has announced a change, which is sent on other streams than the reply."""
        self.handler_task: trio.lowlevel.Task | None = None
        """Task in which the handler runs. `None` before the handler starts and after it has ended."""
        self.nursery: trio.Nursery | None = None
        """Nursery of the handler. `None` before the handler starts, and after its last task has ended."""
        self.from_outside: Cancellation | None = None
        """Cancellation of the whole request by the peer, the connection or the server. If set, the request gets no
        reply."""
        self._inside: Cancellation | None = None
        """Cancellation of the handler only: by its time limit, by its own cancel scope, or to run again."""
        self.answered_instead: Any = None
        """Result to send instead of the handler's result. `None` if the handler's result is used."""
        self._deadline: Alarm | None = None
        self._limit: HandlerLimit | None = None
        self._event: threading.Event | None = None
        self._watching: trio.CancelScope | None = None
        """Cancel scope of the task that sets `event` when the nursery is cancelled."""
        self._reply_wait: trio.CancelScope | None = None
        self.cleanup_alarm: Alarm | None = None
        """Alarm for the end of the cancelled handler's cleanup grace. `detach` stops it."""
        self.lines = Owner()
        """Owner of the request's lines in the outbox, so that they can be withdrawn together."""
        self.line_end = LINE_END
        """End of the JSON line of each notification of the request. It names the related background task, if any."""
        self.rounds: Rounds | None = None
        """Input requests of the handler. `None` until the handler needs input from a client that can't receive
        requests."""
        self.task: RequestTask | None = None
        """The background task that the request created, if any."""
        self.ending: Ending | None = None
        """Record of how the request ends, if the client requests confirmation of its cancellation. Otherwise `None`."""
        self._log: RequestLog | None = None
        self._reporter: ProgressReporter | None = None
        if request.meta:
            self._read_meta()

    def _read_meta(self) -> None:
        """Read the request's ``_meta``: set the caller's deadline, and prepare progress reports if the caller wants
        them."""
        request, alarms, limits = self.request, self.runner.alarms, self.runner.limits
        due, token = math.inf, request.progress_token
        if REMAINING_MS in request.meta:
            due = deadline_of(request.meta) + limits.deadline_grace
        # A client's retry without a deadline removes the deadline of the first request.
        if due < math.inf or self._deadline is not None:
            self.set_deadline(alarms.set(due, self.expire) if due < math.inf else None)
        if (endings := self.runner.endings) is not None:
            endings.enter(self)
        self._reporter = None
        if token is not None:
            has_message, interval = request.revision.progress_message, limits.progress_interval
            self._reporter = ProgressReporter(
                self.outbox, self.lines, token, interval, alarms, with_message=has_message
            )

    # Life

    def advance(self, step: Step) -> None:
        """Move the request to the phase to which ``step`` leads.

        Raises `IllegalStep`, without any change, if ``step`` isn't allowed in the current phase.
        """
        after = PHASE_AFTER[self.phase][step]
        if after is None:
            raise IllegalStep(f"invalid step {step.name} for a request in the phase {self.phase.name}")
        self.phase = after
        self.sends = after is _RUNNING

    def start(self, nursery: trio.Nursery) -> None:
        """Called when the handler starts to run in the current task, with ``nursery`` as its nursery."""
        self.advance(Step.START)
        self.begun = trio.current_time()
        self.handler_task = trio.lowlevel.current_task()
        self.nursery = nursery
        if self._deadline is not None:  # the handler's outgoing calls inherit the deadline of this cancel scope
            nursery.cancel_scope.deadline = self._deadline.due
        current_request.set(self)

    def handler_returned(self) -> bool:
        """Called when the handler function has returned. Tasks that it has started may still be running.

        This stops the internal task that would keep the handler's nursery open. Return true if nothing is left to wait
        for before the reply.
        """
        watching, self._watching = self._watching, _HANDLER_RETURNED
        if watching is not None:
            watching.cancel(reason="the handler has ended")
        assert self.nursery is not None, "a handler runs inside the nursery"
        return not (
            self.nursery.child_tasks
            or self.nursery.cancel_scope.cancel_called  # also after a failed child task or the deadline of the caller
            or self.announces  # let the streams send the change first
            or self.from_outside is not None
            or self.rounds is not None
            or self.exchange.keeps_outcomes
            or self.outbox.is_full(REQUEST_MARKS)
        )

    def leave(self) -> bool:
        """Called when the handler and all its tasks have ended.

        Return true if the handler's nursery was cancelled, for any cause.
        """
        nursery, self.nursery = self.nursery, None
        if self.rounds is not None:
            self.rounds.close()
        return nursery is not None and nursery.cancel_scope.cancelled_caught

    def mute(self) -> None:
        """Send the latest progress report. After that, send nothing but the reply, because the handler has ended."""
        if self.sends and self._reporter is not None:
            self._reporter.flush()
        self.advance(Step.MUTE)

    async def until_cancelled(self, wait: Awaitable[None]) -> None:
        """Await ``wait`` until it returns or the request is cancelled.

        ``wait`` waits for room for the reply, or for the client's retry.
        """
        with trio.CancelScope() as self._reply_wait:
            await wait

    def detach(self) -> None:
        """Drop all references from this scope, because the request has ended.

        The context of the request's task refers to this scope, and would keep the objects alive.
        """
        if self.phase is not _MUTED:
            self.mute()
        self.advance(Step.END)
        if self._deadline is not None:
            self.set_deadline(None)
        if self.cleanup_alarm is not None:
            self.cleanup_alarm.stop()
        if self._reporter is not None:
            self._reporter.forget()
        if self.rounds is not None:
            self.rounds.close()
        self.handler_task = self._reply_wait = self.cleanup_alarm = self._reporter = self.rounds = self._log = None
        self.task = self.nursery = self.answered_instead = None

    def thread_abandoned(self) -> None:
        """Called when a worker thread of the handler was abandoned and still runs."""
        if self.ending is not None:
            self.ending.is_abandoned = True

    # Cancels

    def abort(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel the request, and log or record the cancellation if needed: see `RequestRunner.cancel`."""
        self.runner.cancel(self, cause, reason)

    def cancel(self, cancellation: Cancellation) -> bool:
        """Cancel the request from outside its handler.

        If the request was already cancelled from outside, or has ended, do nothing and return false. Lines of the
        request that are still in the outbox are withdrawn, and its stored progress is dropped (ruling 1). But if the
        answers to its questions were late, the questions were its answer, and stay. Synchronous, so that nothing can
        happen in between.
        """
        if self.from_outside is not None or self.phase is Phase.OVER:
            return False
        self.from_outside = cancellation
        if self._event is not None:
            self._event.set()
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel(reason=cancellation.text)
        self.advance(Step.MUTE)
        if cancellation.cause is not CancelCause.EXPIRED:
            self.outbox.withdraw(self.lines)
        if self._reporter is not None:
            self._reporter.forget()
        if self._reply_wait is not None:
            self._reply_wait.cancel(reason=cancellation.text)
        # Cancel the nursery before failing the input requests, so that the handler's tasks see the cancellation.
        if self.rounds is not None:
            self.rounds.close()
        return True

    def cancel_inside(self, cancellation: Cancellation) -> None:
        """Cancel only the handler, by cancelling its nursery. The request itself isn't cancelled, and still gets a
        reply."""
        self._note(cancellation)
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel(reason=cancellation.text)

    def run_again(self, result: Any, reason: str) -> None:
        """Answer the request with ``result``, and stop its handler. When the client retries, the handler runs again
        from the start.
        """
        self.answered_instead = result
        self.cancel_inside(Cancellation(CancelCause.REPLAY, reason, trio.current_time()))
        if self.rounds is not None:
            self.rounds.close()

    def _note(self, cancellation: Cancellation) -> Cancellation:
        """Store ``cancellation``, the cause of a cancellation that trio has already carried out."""
        self._inside = cancellation
        if self._event is not None:
            self._event.set()
        return cancellation

    @property
    def cancellation(self) -> Cancellation | None:
        """Why and when the request was cancelled, or `None` if it isn't cancelled.

        Can be read from any thread.
        """
        known, limit = self.from_outside or self._inside, self._limit
        # Only code in trio's thread can read trio's clock, to check whether a deadline has passed.
        # Other threads only get a cancellation that is already recorded, by `_watch_nursery` or at a deadline.
        if known is not None or not self._is_in_trio():
            return known
        while limit is not None:
            if limit.scope.cancel_called:
                return self._passed(limit)
            limit = limit.outer
        if self.is_overdue:
            return Cancellation(CancelCause.DEADLINE, DEADLINE_PASSED, self.due)
        if self.nursery is not None and self.nursery.cancel_scope.cancel_called:
            # Read the reason from trio's private attribute. trio publishes it only in a cancelled task's exception.
            # The task that reads the property `cancellation` may not have been cancelled itself.
            told: Any = getattr(self.nursery.cancel_scope, "_cancel_reason", None)
            words = told.reason if told is not None and told.source == "explicit" else None
            return self._note(Cancellation(CancelCause.PARENT, words, trio.current_time()))
        return None

    @property
    def is_cancelled(self) -> bool:
        """True if the request was cancelled, for any cause. Can be read from any thread; never raises."""
        return self.cancellation is not None

    @property
    def event(self) -> threading.Event:
        """An event that is set when the request is cancelled.

        It is for threads, and for other code that can't wait for trio objects.
        """
        event = self._event
        if event is None:
            event = self._event = threading.Event()
        if self.cancellation is not None:
            event.set()
        elif self._watching is None and self.nursery is not None and self._is_in_trio():
            self._watching = trio.CancelScope()
            self.nursery.start_soon(self._watch_nursery, self._watching)
        return event

    def _is_in_trio(self) -> bool:
        """Return true if the current code runs in the same run of trio as the request."""
        return trio.lowlevel.in_trio_run() and self.runner.trio_run.is_here

    async def _watch_nursery(self, watching: trio.CancelScope) -> None:
        """Set `event` when the handler's nursery is cancelled.

        This method runs as a task inside the nursery, because trio notifies only tasks in the nursery.
        """
        with watching:
            try:
                await trio.sleep_forever()
            finally:
                if not watching.cancel_called and self.cancellation is not None and self._event is not None:
                    self._event.set()

    # The properties and methods below are about the deadline that the caller of the request sent

    @property
    def due(self) -> float:
        """Time on trio's clock at which the request is cancelled, because its caller's deadline has passed."""
        return math.inf if self._deadline is None else self._deadline.due

    @property
    def is_overdue(self) -> bool:
        """True if the caller's deadline (`due`) has passed, even if the request hasn't been cancelled yet."""
        return self._deadline is not None and self._deadline.due <= trio.current_time()

    def set_deadline(self, alarm: Alarm | None) -> None:
        """Replace the previous alarm by ``alarm``, which cancels the request at its caller's deadline."""
        if self._deadline is not None:
            self._deadline.stop()
        self._deadline = alarm
        if self.nursery is not None:
            self.nursery.cancel_scope.deadline = self.due

    def expire(self) -> None:
        """Cancel the request because the deadline of its caller has passed."""
        self.abort(CancelCause.DEADLINE, DEADLINE_PASSED)

    # The methods below are about the time limit that the server's author has set for a tool

    @contextmanager
    def move_on_after(self, seconds: float) -> Generator[None]:
        """Cancel the handler, which runs in the ``with`` block, after ``seconds``, like `trio.move_on_after`.

        `cancellation` and `event` report the cancellation. Time spent waiting for the client's user doesn't count.
        """
        assert self.nursery is not None, "a handler runs inside the nursery"
        outer = self._limit
        watching, self._limit = trio.CancelScope(), (limit := HandlerLimit(seconds, outer))
        self.nursery.start_soon(self._watch, limit, watching)
        try:
            with limit.scope:
                yield
        finally:
            if limit.scope.cancel_called:  # the handler may end before `_watch` records that its time is over
                self._passed(limit)
            watching.cancel(reason="the handler has ended")
            self._limit = outer

    async def _watch(self, limit: HandlerLimit, watching: trio.CancelScope) -> None:
        with watching:
            await limit.wait_until_over()
            self._passed(limit)

    def _passed(self, limit: HandlerLimit) -> Cancellation:
        return self._note(Cancellation(CancelCause.DEADLINE, "the time limit of the tool was over", limit.deadline))

    @property
    def has_time_limit(self) -> bool:
        """True if the handler's time is limited, because it runs inside `move_on_after`."""
        return self._limit is not None

    async def standing_still(self, asking: Awaitable[T]) -> T:
        """Pause the handler's time limit while ``asking`` waits for an answer of the client's user.

        Return the result of ``asking``.
        """
        assert self._limit is not None, "the handler has a limit"
        with self._limit.paused():
            return await asking

    # Telling the client

    def notification(self, method: str, params: JSONObject | None) -> bytes:
        """Encode a notification that belongs to this request as a JSON line.

        Raises `NotSerializable` if the notification's parameters can't be encoded as JSON.
        """
        task = self.exchange.related_task
        return frame_notification(method, params if task is None else with_related_task(params, task)) + b"\n"

    def put(self, line: bytes) -> bool:
        """Queue ``line``, a message of this request to its client, in the outbox.

        The message can be withdrawn while it waits there. Return false if the request sends no more messages.
        """
        if self.sends:
            self.outbox.put(line, self.lines)
        return self.sends

    @property
    def log(self) -> RequestLog:
        """The log through which the handler sends messages to the client."""
        if self._log is None:
            self._log = RequestLog(self)
        return self._log

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Report progress of the request: see `ProgressReporter.report`.

        Also returns false if the client sent no progress token, and after the end of the request. In threads other than
        trio's, returns true: trio's thread sends the report soon, before the response.
        """
        if not self.sends:
            return False
        if (reporter := self._reporter) is None:
            return self.task is not None and self.task.report_progress(progress, total, message)
        try:
            return reporter.report(progress, total, message)
        except RuntimeError:
            run = self.runner.trio_run
            if run.is_current:
                raise
            reporter.report_later(progress, total, message)
            return run.call_soon(self._let_progress_in, idempotent=True)

    def _let_progress_in(self) -> None:
        if self.sends and self._reporter is not None:
            self._reporter.let_in()

    def ask(
        self,
        method: str,
        params: dict[str, Any] | None,
        revision: Revision,
        on_progress: OnProgress | None = None,
        cancel_task: Callable[[str], None] | None = None,
    ) -> Awaitable[Any]:
        """Send a request from the handler to its client, and return the result.

        This is like `Connection.request`. The request and its cancellation use the outbox of this request. See
        `Outbound.request` for ``cancel_task``. Raises `NoBackChannel` if a background task has lost its client.
        """
        if self.task is not None and self.task.has_started:
            return self.task.ask(method, params, revision, on_progress)
        return self.runner.ask(method, params, revision, on_progress, outbox=self.outbox, cancel_task=cancel_task)

    # Rounds and exchanges

    def park(self) -> None:
        """Stop sending messages for this request until the client retries it, because the request was answered with
        input requests."""
        assert self.rounds is not None, "nothing was asked"
        if self._reporter is not None:
            self._reporter.flush()
        self.advance(Step.PARK)
        self.rounds.park()

    def bind(self, runner: RequestRunner, exchange: Exchange, request: InboundRequest, ticket: Ticket) -> None:
        """Continue the handler with the client's retry ``request``, which arrived over ``exchange``.

        The retry's deadline replaces the earlier deadline. The handler keeps the arguments that it already has.
        """
        self.advance(Step.COME_BACK)
        request.continuation, self.request = self.request.continuation, request
        self._go_to(runner, exchange, ticket)
        self._read_meta()
        if self._log is not None:
            self._log._read_level()

    def move(self, runner: RequestRunner, exchange: Exchange, ticket: Ticket) -> None:
        """Continue the running handler in another exchange, ``exchange``, because the client has already got a response
        to the request."""
        reporter = self._reporter
        if reporter is not None:
            reporter.flush()
        self._go_to(runner, exchange, ticket)
        if exchange.related_task is not None:
            # In MCP 2025-11-25 (tasks page), all messages of a background task MUST contain the task's id.
            self.line_end = b"," + encode_value(with_related_task(None, exchange.related_task))[1:] + LINE_END[1:]
        if reporter is not None:
            if self.outbox.over:  # the new outbox drops all messages, so no more progress can be sent
                reporter.forget()
                self._reporter = None
            else:
                reporter.redirect(self.outbox, self.lines, self.line_end)

    def _go_to(self, runner: RequestRunner, exchange: Exchange, ticket: Ticket) -> None:
        self.runner, self.exchange, self.outbox, self.ticket = runner, exchange, exchange.outbox, ticket
        # An `Owner` stands for the sender of messages in one outbox, so the new outbox needs a new one.
        self.lines = Owner()
