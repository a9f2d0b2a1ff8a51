"""RequestScope holds the nursery, the cancel scope and the closing rules of one inbound request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from math import inf as _NEVER
from typing import TYPE_CHECKING, Any, Protocol

import trio

from ...concurrency.workers import frames_of
from ...jsonrpc.codec import encode_value, frame_notification
from ...protocol.meta import TraceContext, with_related_task
from ...protocol.types.input_required import ASKABLE
from ...protocol.types.notifications import log_level_rank
from ...state.requests import Phase, RequestLife, Step
from ..cancellation import DEADLINE_PASSED, AbortSignal, CancelCause, Cancellation, due_of
from ..outbox import LINE_END, Owner
from .logs import NEVER_LOGGED, RequestLog
from .progress import ProgressReporter
from .questions import Question
from .rounds import Rounds, Send

if TYPE_CHECKING:
    from ...concurrency.time_limits import Graces
    from ...concurrency.wakeups import Alarm, Alarms
    from ...concurrency.workers import Workers
    from ...protocol.fields import JSONObject
    from ...protocol.meta import ProgressToken
    from ...protocol.revisions import Revision
    from ...state.requests import InboundRequest
    from ...tasks.request_task import RequestTask
    from ..calls import Ask, OnProgress, Posts
    from ..exchange import Exchange
    from ..limits import Limits, Load
    from ..replies import Replies
    from .admission import Admission, Ticket
    from .questions import AnswerLog
    from .rounds import Seal

current_request: ContextVar[RequestScope] = ContextVar("trio_mcp.current_request")
"""The request whose handler runs here, its child tasks and worker threads included."""


class Runner(Protocol):
    """The runner of the requests of one connection, as the requests see the runner: a `RequestRunner`."""

    limits: Limits
    load: Load
    alarms: Alarms
    workers: Workers
    """The threads of plain ``def`` handlers."""
    graces: Graces
    """Times that cancelled handlers in threads may clean up."""
    trio_token: trio.lowlevel.TrioToken
    """Token for threads that have something to say to the connection."""
    ask: Ask
    posts: Posts | None
    """Sender of requests for whose results no task waits; `None`: there is nobody at the other end."""
    admission: Admission[RequestScope]
    replies: Replies
    seal: Seal | None
    """Maker of ``requestState``; `None`: this side does not answer requests with questions."""
    stateless: bool
    """True when nothing is kept between requests, so that no request can wait for an answer of the client."""
    may_log: bool
    """True when handlers' log messages may go out."""

    def cancel(self, scope: RequestScope, cause: CancelCause, reason: str | None) -> None:
        """Cancel a request."""
        ...

    def park(self, scope: RequestScope, questions: Sequence[Question]) -> None:
        """Answer a request with ``questions``, and let its handler wait for the answers."""
        ...

    def unpark(self, scope: RequestScope) -> None:
        """Note that a parked request goes on with another ticket."""
        ...

    def start(self, scope: RequestScope) -> None:
        """Let a request run whose turn has come."""
        ...


class RequestScope:
    """An inbound request from its acceptance to its end, all its rounds included.

    The cancel scope of its nursery is the abort signal: `cancel` stops the handler, the tasks that the handler started
    in the nursery and the requests that the handler has sent and waits for. `RequestLife` says in which phase the
    request is. The request belongs to ``exchange`` and is run by ``runner``; the client may come back on another
    exchange (`bind`).
    """

    __slots__ = (
        "__weakref__",
        "_cleanup",
        "_log",
        "_reply_wait",
        "_reporter",
        "_task",
        "abort",
        "answered_instead",
        "begun",
        "cancelled_inside",
        "exchange",
        "has_begun",
        "life",
        "line_end",
        "lines",
        "outbox",
        "request",
        "rounds",
        "runner",
        "task",
        "ticket",
    )

    def __init__(self, runner: Runner, exchange: Exchange, request: InboundRequest, ticket: Ticket) -> None:
        self.runner = runner
        self.exchange = exchange
        self.outbox = exchange.outbox
        """The outbox of the exchange that the request belongs to now."""
        self.request = request
        """The request that will be answered next."""
        self.ticket = ticket
        """The part of the bounds that the request takes."""
        self.lines = Owner()
        """Owner of its lines in the outbox."""
        self.line_end = LINE_END
        """End of the lines of its notifications, with the task of the notifications."""
        self.abort = AbortSignal()
        self.rounds: Rounds | None = None
        """Questions of the request; `None` until the handler asks a client that can be sent no requests."""
        self.task: RequestTask | None = None
        """The task of the request; `None` where there is none."""
        self.cancelled_inside = False
        """True once the nursery's cancel scope was cancelled, by whomever, and that ended the handler."""
        self.answered_instead: Any = None
        """Result to answer in place of the result of the handler; `None` where the latter counts."""
        self.life = RequestLife()
        """The phase of the request."""
        self.has_begun = False
        """True once the handler has its task."""
        self._task: trio.lowlevel.Task | None = None
        self._reply_wait: trio.CancelScope | None = None
        """Scope in which nothing but the reply or the next round is waited for."""
        self._cleanup: Alarm | None = None
        """Alarm for the end of the grace that a cancelled handler has to clean up."""
        self._log: RequestLog | None = None
        self._reporter = None if request.progress_token is None else self._new_reporter(request.progress_token)
        if request.meta:
            self._set_deadline()

    def _set_deadline(self) -> None:
        due, runner = due_of(self.request.meta) + self.runner.limits.deadline_grace, self.runner
        self.abort.set_deadline(runner.alarms.set(due, self.expire) if due < _NEVER else None)

    def _new_reporter(self, token: ProgressToken) -> ProgressReporter:
        return ProgressReporter(
            self.outbox,
            self.lines,
            token,
            self.runner.limits.progress_interval,
            self._let_out_later,
            with_message=self.request.revision.progress_message,
        )

    def _let_out_later(self, reporter: ProgressReporter) -> Alarm:
        assert reporter.due is not None, "it keeps a value"
        return self.runner.alarms.set(reporter.due, reporter.let_out)

    # Phases

    @property
    def sends(self) -> bool:
        """True while lines of the request are sent, its reply apart."""
        return self.life.sends

    def begin(self) -> bool:
        """Begin in the current task. Return false for a request that was cancelled before, and so never runs (DESIGN
        ruling 4)."""
        if self.life.phase is Phase.MUTED:
            return False
        self.begun = trio.current_time()
        self.life.take(Step.START)
        self.has_begun = True
        self._task = trio.lowlevel.current_task()
        current_request.set(self)
        return True

    def leave_nursery(self) -> None:
        """Note that the handler and all its tasks have ended."""
        self.cancelled_inside = self.abort.leave()
        if self.rounds is not None:
            self.rounds.end()

    def close(self) -> None:
        """Let the latest progress out, and then nothing more: the handler is done."""
        if self.life.sends and self._reporter is not None:
            self._reporter.flush()
        self.life.take(Step.MUTE)

    async def room_for_reply(self, marks: int) -> None:
        """Wait until there is room for the reply. A cancel of the request ends the wait, too."""
        with trio.CancelScope() as self._reply_wait:
            await self.outbox.room(marks)

    def let_go(self) -> None:
        """Drop all references of the request, which is over: the task's context holds this scope, and so would keep all
        of that alive."""
        if self.life.phase is not Phase.MUTED:
            self.close()
        self.life.take(Step.END)
        if self.request.meta or self.request.packed is not None:  # a request that waits has its meta packed
            self.abort.set_deadline(None)
        if self._cleanup is not None:
            self._cleanup.stop()
        if self._reporter is not None:
            self._reporter.forget()
        if self.rounds is not None:
            self.rounds.end()
        self._task = self._reply_wait = self._cleanup = self._reporter = self.rounds = self._log = self.task = None
        self.answered_instead = None

    # Cancels

    def end(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel the request, and see to all that follows: see `RequestRunner.cancel`."""
        self.runner.cancel(self, cause, reason)

    def cancel(self, cause: CancelCause, reason: str | None) -> bool:
        """Cancel the request itself. Return false for a request that was cancelled before or is over: nothing happens
        then.

        Lines of the request that are still in the outbox are withdrawn, and the progress that its reporter keeps for
        later is forgotten (DESIGN ruling 1); but questions whose time is up were its answer, and stay. Synchronous, so
        nothing comes between.
        """
        if self.life.phase is Phase.OVER:
            return False
        cancellation = Cancellation(cause, reason, trio.current_time())
        if not self.abort.cancel(cancellation):
            return False
        self.life.take(Step.MUTE)
        if cause is not CancelCause.EXPIRED:
            self.outbox.withdraw(self.lines)
        if self._reporter is not None:
            self._reporter.forget()
        if self._reply_wait is not None:
            self._reply_wait.cancel(reason=cancellation.words)
        if self.rounds is not None:  # after the cancel of the nursery, so that its tasks learn of that instead
            self.rounds.end()
        return True

    def expire(self) -> None:
        """Cancel the request because the deadline of its caller has passed."""
        self.end(CancelCause.DEADLINE, DEADLINE_PASSED)

    def watch_cleanup(self, overran: Alarm) -> None:
        """Take the alarm for the end of the grace, which `let_go` stops."""
        self._cleanup = overran

    @property
    def cancellation(self) -> Cancellation | None:
        """The cause, reason and time of the cancel; `None` while there was none. May be read from any thread."""
        return self.abort.cancellation

    @property
    def is_cancelled(self) -> bool:
        """True once the request was cancelled, by whomever. May be read from any thread; never raises."""
        return self.abort.cancellation is not None

    def in_context(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function`` in the context of the handler's task, so that the log knows the source of its records."""
        if self._task is None:
            function(*args)
        else:
            self._task.context.run(function, *args)

    def stack(self) -> Any:
        """Return the position of the handler's task or thread, for `traceback.StackSummary`; empty before the start."""
        return () if self._task is None else frames_of(self._task)

    # Telling the client

    def notification(self, method: str, params: JSONObject | None) -> bytes:
        """Return the line of a notification that belongs to the request. Raises `NotSerializable`."""
        task = self.exchange.related_task
        return frame_notification(method, params if task is None else with_related_task(params, task)) + b"\n"

    def put(self, line: bytes) -> bool:
        """Send a line of the request, which can be withdrawn. Return false when no line is sent any more."""
        if not self.life.sends:
            return False
        self.outbox.put(line, self.lines)
        return True

    def ask(
        self,
        method: str,
        params: dict[str, Any] | None,
        revision: Revision,
        on_progress: OnProgress | None = None,
        cancel_task: Callable[[str], None] | None = None,
    ) -> Awaitable[Any]:
        """Send a request of the handler and wait for its result, as `Connection.request`. The request and its cancel
        go where the lines of this request go. ``cancel_task``: see `Outbound.request`. Raises `NoWayBack` for a task
        that has lost its client."""
        if self.task is not None and self.task.has_started:
            return self.task.ask(method, params, revision, on_progress)
        return self.runner.ask(method, params, revision, on_progress, outbox=self.outbox, cancel_task=cancel_task)

    @property
    def trace(self) -> TraceContext | None:
        """The trace that the request belongs to, as its ``_meta`` says now."""
        self.request.unpack()
        return TraceContext.of(self.request.meta)

    @property
    def minimum_log_rank(self) -> int:
        """The least rank that is sent: this request's own rank, if any, else the connection's."""
        if not self.runner.may_log:
            return NEVER_LOGGED
        request = self.request
        if request.revision.log_level == "request":
            # 2026-07-28 logging: MUST NOT emit for a request without a logLevel.
            return NEVER_LOGGED if request.log_level is None else log_level_rank(request.log_level)
        return self.exchange.state.log_rank

    def admits(self, level: str) -> bool:
        """Return whether the client wants messages of ``level`` now."""
        minimum = self.minimum_log_rank
        return self.sends and minimum < NEVER_LOGGED and not 0 <= log_level_rank(level) < minimum

    @property
    def log(self) -> RequestLog:
        """The log of the request."""
        if self._log is None:
            self._log = RequestLog(self)
        return self._log

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Report progress: see `ProgressReporter.report`. Return false also without a token, and after the end."""
        if not self.life.sends:
            return False
        if self._reporter is None:
            return self.task is not None and self.task.report_progress(progress, total, message)
        return self._reporter.report(progress, total, message)

    # Questions

    @property
    def sends_questions(self) -> bool:
        """True while questions go to the client as requests of their own; false while the answer, or the task, has
        the questions."""
        has_started = self.task is not None and self.task.has_started
        return self.request.revision.server_requests and not has_started

    def ask_client(self, method: str, params: JSONObject | None) -> Awaitable[Any]:
        """Ask the client, in the way that is open now, and return the answer, plain data."""
        if self.sends_questions or method not in ASKABLE:
            return self.ask(method, params, self.request.revision)
        return self.require_input(method, params)

    def require_input(self, method: str, params: JSONObject | None, key: str | None = None) -> Awaitable[JSONObject]:
        """Ask a client that can be sent no requests: see `Rounds.ask`."""
        rounds = self.rounds
        if rounds is None:
            rounds = Rounds(self, self._park_with)
            if self.abort.nursery is None or self.abort.from_outside is not None:
                rounds.end()
            else:
                self.rounds = rounds
                if self.task is not None and self.task.has_started:
                    self.task.collect_questions()
        return rounds.ask(method, params, key)

    def _park_with(self, questions: Sequence[Question]) -> None:
        self.runner.park(self, questions)  # of this round: a later round may have another runner

    @property
    def keeps_answers(self) -> bool:
        """True where a run after a restart may ask the same questions."""
        return self.task is not None and self.task.keeps_answers

    def replay(self, send: Send, known: Mapping[str, Any] | None, log: AnswerLog | None = None) -> None:
        """Have questions go to ``send`` from now on, instead of parking the handler. ``known`` are the answers of
        earlier rounds; ``log`` has the answers of a run before a restart."""
        self.rounds = Rounds(self, send, known, log)

    def run_again(self, result: Any, reason: str) -> None:
        """Stop the handler, which will run again from the top, and answer ``result`` instead of the handler's."""
        self.answered_instead = result
        self.abort.cancel_inside(Cancellation(CancelCause.REPLAY, reason, trio.current_time()))
        if self.rounds is not None:
            self.rounds.end()

    def park(self) -> None:
        """Note that the request is answered with questions: nothing more is sent until the next round begins."""
        assert self.rounds is not None, "nothing was asked"
        if self._reporter is not None:
            self._reporter.flush()
        self.life.take(Step.PARK)
        self.rounds.park()

    def bind(self, runner: Runner, exchange: Exchange, request: InboundRequest, ticket: Ticket) -> None:
        """Take ``request``, with which the client came back on ``exchange``, as the one to go on with from `resume` on.
        The new request has a deadline of its own. The arguments of the handler stay."""
        self.life.take(Step.COME_BACK)
        request.continuation, self.request = self.request.continuation, request
        self.runner, self.exchange, self.outbox, self.ticket = runner, exchange, exchange.outbox, ticket
        self.lines = Owner()  # an owner has lines in one outbox
        self._set_deadline()
        self._reporter = None if request.progress_token is None else self._new_reporter(request.progress_token)

    def move(self, runner: Runner, exchange: Exchange, ticket: Ticket) -> None:
        """Go on in ``exchange``, since the request was answered, though its handler runs on."""
        if self._reporter is not None:
            self._reporter.flush()
        self.runner, self.exchange, self.outbox, self.ticket = runner, exchange, exchange.outbox, ticket
        self.lines = Owner()
        if exchange.related_task is not None:
            # 2025-11-25 tasks, Related Task Metadata: MUST be in all messages of the task.
            self.line_end = b"," + encode_value(with_related_task(None, exchange.related_task))[1:] + LINE_END[1:]
        if self._reporter is not None:
            if self.outbox.over:  # no notification tells of this request any more
                self._reporter.forget()
                self._reporter = None
            else:
                self._reporter.redirect(self.outbox, self.lines, self.line_end)

    def resume(self) -> None:
        """Begin the next round."""
        assert self.rounds is not None, "only what is parked is resumed"
        self.life.take(Step.START)
        self.rounds.resume()

    async def next_round(self) -> None:
        """Wait until the request is not parked. A cancel of the request ends the wait, too."""
        if self.rounds is not None and self.abort.from_outside is None:
            with trio.CancelScope() as self._reply_wait:
                await self.rounds.resumed()
