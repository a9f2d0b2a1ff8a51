"""RequestScope holds the nursery, the cancel scope and the closing rules of one inbound request."""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import trio

from ...concurrency.places import WorkerShare
from ...concurrency.workers import frames_of
from ...protocol.fields import JSONObject
from ...protocol.log_levels import log_level_rank
from ...protocol.meta import ProgressToken
from ...protocol.revisions import Revision
from ...protocol.trace_context import TraceContext
from ...state.requests import InboundRequest
from ..batches import BatchReplies
from ..on_progress import OnProgress
from ..remaining_time import due_of
from .abort_signal import Abortable
from .cancellation import CancelCause, Cancellation
from .handler_timeout import HandlerLimit
from .logs import Logged, RequestLog
from .progress import ProgressReporter
from .rounds import Asking, Question, Rounds
from .wiring import Wiring

__all__ = ["NEVER_LOGGED", "RequestScope", "current_request"]

NEVER_LOGGED = 8
"""A minimum above every rank."""

current_request: ContextVar[RequestScope] = ContextVar("trio_mcp.current_request")
"""The request whose handler runs here, its child tasks and worker threads included."""


class Ask(Protocol):
    """Sends the handler's own requests: `DuplexChannel.request`."""

    def __call__(
        self, method: str, params: dict[str, Any] | None, revision: Revision, on_progress: OnProgress | None = None, /
    ) -> Awaitable[Any]:
        """Send a request and wait for its result."""
        ...


class Park(Protocol):
    """Lets a handler wait for the answers to its questions: `Parking.park`."""

    def __call__(self, scope: RequestScope, questions: Sequence[Question], /) -> None:
        """Answer the request with ``questions``."""
        ...


class RequestScope(Logged, Asking, Abortable):
    """An inbound request from its acceptance to its end, all its rounds included.

    Its nursery's cancel scope is the abort signal: `cancel` stops the handler, the tasks it started in the
    nursery and the requests it has sent and waits for. After `finished` nothing more is sent for it, unless it is
    `parked`: then it goes on when the client comes back.
    """

    __slots__ = (
        "_cancellation",
        "_event",
        "_log",
        "_overdue",
        "_park",
        "ask",
        "batch",
        "cancelled_inside",
        "deadline_number",
        "due",
        "holds_slot",
        "instead",
        "is_over",
        "limit",
        "nursery",
        "reply_scope",
        "reporter",
        "request",
        "rounds",
        "size",
        "task",
        "watching",
        "wiring",
    )

    def __init__(
        self, wiring: Wiring, request: InboundRequest, batch: BatchReplies | None, ask: Ask, park: Park
    ) -> None:
        self.wiring = wiring
        self.batch = batch
        self.request = request
        self.ask = ask
        self._park = park
        self.outbox = wiring.outbox
        self.segments = []
        self.finished = False
        """True once nothing more is sent for the request but, perhaps, its answer."""
        self.is_over = False
        """True once handler, child tasks and cleanup have ended."""
        self.holds_slot = False
        """True while the request counts as in flight."""
        self.size = 0
        """Bytes of what the handler was called with (`InboundRequest.size`), as long as they are counted."""
        self.due = self._due() if request.meta else math.inf
        """Time at which the request is cancelled because its caller must have given up (`trio.current_time`)."""
        self.deadline_number = -1
        """Number that `Deadlines` keeps here."""
        self.rounds: Rounds | None = None
        """Questions of the request; `None` until it asks a client that can be sent no requests."""
        self.instead: Any = None
        """Result to answer, whatever the handler returns; `None` for what it returns."""
        self.nursery: trio.Nursery | None = None
        """Nursery of the handler; `None` until the handler runs, and once it and all it started have ended."""
        self.cancelled_inside = False
        """True once the nursery's cancel scope was cancelled, by whomever, and that ended the handler."""
        self.task: trio.lowlevel.Task | None = None
        self.reply_scope: trio.CancelScope | None = None
        self.reporter = None if request.progress_token is None else self._new_reporter(request.progress_token)
        self._cancellation: Cancellation | None = None
        """Cancellation from outside: by the peer, the connection or the server. The request is answered no more."""
        self._overdue: Cancellation | None = None
        """Cancellation by its own side: by its time limit, by its own scope, or because the handler is to run again.
        The request is answered."""
        self.limit: HandlerLimit | None = None
        """Limit of the handler's time, where there is one."""
        self._event: threading.Event | None = None
        self.watching: trio.CancelScope | None = None
        """Scope of the task that sets `event` when the nursery is cancelled; `None` as long as no code has asked for
        `event`."""
        self._log: RequestLog | None = None

    def _due(self) -> float:
        return due_of(self.request.meta) + self.wiring.limits.deadline_grace

    def _new_reporter(self, token: ProgressToken) -> ProgressReporter:
        wiring = self.wiring
        return ProgressReporter(
            wiring.outbox,
            self,
            token,
            wiring.limits.progress_interval,
            wiring.late_progress.add,
            with_message=self.request.revision.progress_message,
        )

    @property
    def workers(self) -> WorkerShare:
        """The threads that plain ``def`` handlers of this connection may have."""
        return self.wiring.workers

    def cancel(self, cause: CancelCause, reason: str | None) -> bool:
        """Cancel the request. Return false when it was cancelled before or is over: nothing happens then.

        Lines of it that are still in the outbox are withdrawn, and the progress that its reporter keeps for later is
        forgotten (DESIGN ruling 1); but questions whose time is up were its answer, and stay. Synchronous, so nothing
        comes between.
        """
        if self._cancellation is not None or self.is_over:
            return False
        self._cancellation = Cancellation(cause, reason, trio.current_time())
        self.finished = True
        if cause is not CancelCause.EXPIRED:
            self.outbox.withdraw(self)
        if self.reporter is not None:
            self.reporter.forget()
        if self._event is not None:
            self._event.set()
        words = reason or cause.value
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel(reason=words)
        if self.reply_scope is not None:
            self.reply_scope.cancel(reason=words)
        if self.rounds is not None:  # after the cancel of the nursery, so that its tasks learn of that instead
            self.rounds.end()
        return True

    @property
    def trace(self) -> TraceContext | None:
        """The trace that the request belongs to, as its ``_meta`` says now."""
        return TraceContext.of(self.request.meta)

    @property
    def minimum_log_rank(self) -> int:
        """The least rank that is sent: this request's own where it named one, else the connection's."""
        if not self.wiring.may_log:
            return NEVER_LOGGED
        request = self.request
        if request.revision.log_level == "request":
            # 2026-07-28 logging: MUST NOT emit for a request without a logLevel.
            return NEVER_LOGGED if request.log_level is None else log_level_rank(request.log_level)
        return self.wiring.state.log_rank

    def admits(self, level: str) -> bool:
        """Return whether the client wants messages of ``level`` now."""
        return (
            not self.finished
            and self.minimum_log_rank < NEVER_LOGGED
            and not 0 <= log_level_rank(level) < self.minimum_log_rank
        )

    @property
    def log(self) -> RequestLog:
        """The log of the request."""
        if self._log is None:
            self._log = RequestLog(self)
        return self._log

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Report progress: see `ProgressReporter.report`. Return false also without a token, and after the end."""
        if self.reporter is None or self.finished:
            return False
        return self.reporter.report(progress, total, message)

    # Rounds

    async def require_input(self, method: str, params: JSONObject | None) -> JSONObject:
        """Ask a client that can be sent no requests: see `Rounds.ask`."""
        rounds = self.rounds
        if rounds is None:
            rounds = Rounds(self, self._park_with)
            if self.nursery is None or self._cancellation is not None:
                rounds.end()
            else:
                self.rounds = rounds
        return await rounds.ask(method, params)

    def _park_with(self, questions: Sequence[Question]) -> None:
        self._park(self, questions)

    def park(self) -> None:
        """Note that the request is answered with questions: nothing more is sent until the next round begins."""
        assert self.rounds is not None, "nothing was asked"
        self.close()
        self.rounds.park()

    def bind(self, request: InboundRequest) -> None:
        """Take ``request``, with which the client came back, as the one to go on with from `resume` on. It has a
        deadline of its own. What the handler was run with stays."""
        request.continuation, self.request = self.request.continuation, request
        self.due = self._due()
        if self.nursery is not None:
            self.nursery.cancel_scope.deadline = self.due
        self.reporter = None if request.progress_token is None else self._new_reporter(request.progress_token)

    def resume(self) -> None:
        """Begin the next round."""
        assert self.rounds is not None, "only what is parked is resumed"
        self.finished = False
        self.rounds.resume()

    @property
    def parked(self) -> bool:
        """True while the request is answered with questions, and the next round has not begun."""
        return self.rounds is not None and self.rounds.parked

    async def next_round(self) -> None:
        """Wait until the request is not parked. A cancel of the request ends the wait, too."""
        if self.rounds is not None and self._cancellation is None:
            with trio.CancelScope() as self.reply_scope:
                await self.rounds.resumed()

    def run_again(self, result: Any, reason: str) -> None:
        """Stop the handler, which will run again from the top, and answer ``result`` instead of what it returns."""
        assert self.nursery is not None, "a handler runs inside the nursery"
        self.instead = result
        self._overdue = Cancellation(CancelCause.REPLAY, reason, trio.current_time())
        if self._event is not None:
            self._event.set()
        self.nursery.cancel_scope.cancel(reason=reason)
        if self.rounds is not None:
            self.rounds.end()

    def leave_nursery(self) -> None:
        """Note that the handler and all that it started have ended."""
        assert self.nursery is not None, "it has run"
        self.cancelled_inside = self.nursery.cancel_scope.cancelled_caught
        self.nursery = None
        if self.rounds is not None:
            self.rounds.end()

    def close(self) -> None:
        """Let the latest progress out, and nothing after it: the handler is done."""
        if not self.finished and self.reporter is not None:
            self.reporter.flush()
        self.finished = True

    def let_go(self) -> None:
        """Drop what the request refers to, since it is over: the task's context holds this scope, and so would keep all
        of that alive."""
        self.is_over = True
        if self.rounds is not None:
            self.rounds.end()
        self.task = self.nursery = self.reply_scope = self.reporter = self.rounds = self.instead = self._log = None

    def stack(self) -> Any:
        """Return where the handler's task or thread is, as `traceback.StackSummary` takes it; empty before it runs."""
        return () if self.task is None else frames_of(self.task)
