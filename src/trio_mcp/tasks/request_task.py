"""RequestTask is the task that a request may become, and then is."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import TOO_BUSY, CodedError
from ..protocol.errors import NoWayBack
from ..runtime.cancellation import CancelCause
from ..runtime.requests.progress import reportable
from ..stores.task_store import OnRestart, TaskRecord
from .core_questions import ClientWay, CoreClient
from .task_exchange import TaskExchange, TaskQuestions
from .task_state import TASK_LOST
from .transitions import Log, checkpointed, given_away

if TYPE_CHECKING:
    from ..concurrency.wakeups import Alarm
    from ..protocol.revisions import Revision
    from ..runtime.calls import OnProgress
    from ..runtime.requests.scope import RequestScope
    from ..state.requests import InboundRequest
    from .records import Transition
    from .task_exchange import HostOfTasks

_ID_BYTES = 18
_HOLDER_BYTES = 9


def new_holder(process: str) -> str:
    """Return a token for tasks that ``process`` creates, or claims in one claim: see `TaskStore`."""
    return f"{process}:{secrets.token_urlsafe(_HOLDER_BYTES)}"


def _process_of(holder: str) -> str:
    return holder.partition(":")[0]


class RequestTask:
    """The task of one request that runs in ``host``: until `start` a possibility, from then on kept in the store.

    ``ttl_ms``: milliseconds from the creation; `None`: for ever. ``must_be``: the request is answered with a task in
    any case. ``record``: the record of a task that runs once more.
    """

    __slots__ = (
        "_alarm",
        "_client",
        "_host",
        "_is_forgone",
        "_is_left",
        "_is_lost",
        "_questions",
        "_starting",
        "attempt",
        "caller",
        "checkpoint_before_start",
        "epoch",
        "has_started",
        "held_until",
        "holder",
        "id",
        "is_ended",
        "is_external",
        "mark",
        "message",
        "must_be",
        "on_restart",
        "restored",
        "scope",
        "ttl_ms",
    )

    def __init__(
        self,
        host: HostOfTasks[RequestTask],
        scope: RequestScope,
        *,
        ttl_ms: int | None,
        on_restart: OnRestart,
        must_be: bool = False,
        record: TaskRecord | None = None,
        is_external: bool = False,
    ) -> None:
        self._host = host
        self.scope = scope
        # A letter comes first: an id that begins with a hyphen would be an option on a command line.
        self.id = f"t{secrets.token_urlsafe(_ID_BYTES)}" if record is None else record.id
        """Unguessable name of the task (2025-11-25 tasks, Task Isolation)."""
        self.ttl_ms = ttl_ms
        self.on_restart: OnRestart = on_restart
        self.must_be = must_be
        peer = scope.exchange.peer
        self.caller: object = peer.principal or ("" if record is not None or is_external else scope.ticket.caller)
        """The party that the bounds of running tasks hold for: the principal or, without one, the `Caller`, which does
        not keep a connection alive."""
        self.has_started = record is not None
        self.epoch = 0
        """Number of the claim under which this process runs the task."""
        self.holder: str | None = None
        """Token under which this process runs the task, as every write of ours says; `None` where no process does."""
        self.held_until = 0.0
        """Time, by trio's clock, after which another process may run the task."""
        self.mark = b""
        """Mark of the record that was seen last."""
        self.message: str | None = None
        """Last words of the handler for people."""
        self.is_ended = False
        """True from the moment when the outcome begins to be kept."""
        self.restored: bytes | None = None if record is None or on_restart != "resume" else record.checkpoint
        """Checkpoint of the run before; `None` where there is none."""
        self.checkpoint_before_start: bytes | None = None
        """Checkpoint to be kept with the new record."""
        self.attempt = 1 if record is None else record.attempt
        self.is_external = is_external
        """True once the work is done elsewhere: see `TaskRecord.is_external`."""
        self._is_left = False
        self._is_lost = False
        self._starting: trio.Event | None = None
        self._is_forgone = False
        self._questions = TaskQuestions(scope, self._change)
        self._alarm: Alarm | None = None
        self._client: CoreClient | None = None
        """The requestor, where the form of the task is that of 2025-11-25, and the requestor is known."""

    # Start

    @property
    def grace(self) -> float:
        """Seconds after which the task starts by itself."""
        return self._host.settings.grace

    def start_after(self, seconds: float) -> None:
        """Start the task after ``seconds``, unless the request is answered before."""
        due = trio.current_time() + seconds
        self._alarm = self.scope.runner.alarms.set(due, partial(self._start_now, seconds, self.scope.request))

    def _start_now(self, seconds: float, request: InboundRequest) -> None:
        nursery = self.scope.abort.nursery
        if nursery is None or self.has_started:
            return
        if self.scope.sends and self.scope.request is request:
            nursery.start_soon(self._start_where_possible)
        else:
            self.start_after(seconds)  # the client has the questions, and time to answer; or has just come back

    async def _start_where_possible(self) -> None:
        try:
            await self.start()
        except CodedError:
            if self.must_be:
                raise

    def stop_waiting(self) -> None:
        """Stop the alarm: the request is about to be answered, or the task is over."""
        if self._alarm is not None:
            self._alarm.stop()
            self._alarm = None

    async def start(self) -> None:
        """Keep the task, and answer the request with the task. Return at once where that was done before.

        While the request is answered with questions, wait until its client comes back. Raises `CodedError` (-31000),
        with nothing started, where there are too many tasks. Under cancellation either the request was answered with a
        task that is kept, or there is no task.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._starting is not None:
            await self._starting.wait()
        if self.has_started:
            return
        self._starting = trio.Event()
        try:
            await self._start()
        finally:
            self._starting.set()
            self._starting = None

    async def _start(self) -> None:
        scope, host = self.scope, self._host
        await self._between_rounds()
        if not scope.sends:  # the caller gave up
            await trio.lowlevel.checkpoint()
            return
        record = await host.create(self)
        try:
            await self._between_rounds()
            if scope.sends and not self._is_forgone and not host.ending.is_set():
                self._become(record)
        finally:
            if not self.has_started:  # nobody ever learns of the task
                await host.abandon(self, record)
        if not self.has_started:
            await trio.lowlevel.checkpoint()
            if scope.sends and not self._is_forgone:
                raise CodedError(TOO_BUSY, "Shutting down: no new tasks are taken")

    def _become(self, record: TaskRecord) -> None:
        self.stop_waiting()
        self.has_started = True
        self._host.adopt(self, record)
        if self.message != record.message:  # told while the record was written
            self._host.has_words(self)

    def forgo(self) -> None:
        """Do not start: the request is answered with the questions that its handler has returned."""
        self._is_forgone = True

    async def give_away(self, ttl_ms: int | None, message: str | None) -> None:
        """Start, if need be, and have the work done elsewhere, within ``ttl_ms`` milliseconds from the creation. The
        end of the handler is still the end of the task, unless `leave` is called. Raises as `start`."""
        self.is_external, self.ttl_ms, self.message = True, ttl_ms, message or self.message
        if self.has_started:
            words, keep_ms = self.message, int(self._host.settings.keep * 1000)
            await self._change(lambda record, now: given_away(record, now, words, ttl_ms, keep_ms))
            return
        try:
            await self.start()
        finally:
            self.is_external = self.has_started

    def leave(self) -> None:
        """Let the task go on without its handler, since the work is done elsewhere: the reply is not kept."""
        self._is_left = True

    async def _between_rounds(self) -> None:
        """Wait until the request is not answered with questions."""
        while self.scope.rounds is not None and not self.scope.sends and self.scope.abort.from_outside is None:
            await self.scope.rounds.resumed()
            await trio.lowlevel.checkpoint()

    # Questions

    def take_questions(self) -> None:
        """Have the questions of the handler from now on kept with the task, which tells its client of them."""
        self._questions.take()

    @property
    def keeps_answers(self) -> bool:
        """True where a run after a restart may ask the same questions: see `AnswerLog`."""
        return self.on_restart != "fail" and self._host.settings.store is not None

    def asked_before_start(self) -> Log:
        """Return the questions and answers so far, for the record that is about to be made."""
        return self._questions.before_start(self._host.settings.max_record_bytes)

    def deliver(self, answers: Mapping[str, bytes]) -> None:
        """Give the handler the expected ones of ``answers``."""
        self._questions.deliver(answers)

    async def _change(self, transition: Transition) -> None:
        record = await self._host.change(self, transition)
        if record is None or record.phase.is_final:
            # The handler is cancelled, and does not go on as if the change were kept.
            await trio.lowlevel.checkpoint()
            raise CodedError(TASK_LOST, "the task has ended, or is run elsewhere, and nothing was kept")

    def ask(
        self, method: str, params: dict[str, Any] | None, revision: Revision, on_progress: OnProgress | None
    ) -> Awaitable[Any]:
        """Send a request of the handler that is no question: see `RequestScope.ask`."""
        if self._client is None:
            raise NoWayBack("the client of this task is not known")
        return self._client.ask(method, params, on_progress)

    # Telling

    def seen(self, record: TaskRecord) -> None:
        """Take the next record of the task, of which a client that has asked for the task is told."""
        if self._client is not None:
            self._client.seen(record)

    def progressed(self, progress: float, total: float | None, message: str | None) -> bool:
        """Make progress the message of the task, since there are no notifications of progress (extension tasks, Task
        Status Notifications)."""
        if (report := reportable(progress, total, message)) is None:
            return False
        done, of, words = report
        self.tell(words or (f"{done:g}" if of is None else f"{done:g} of {of:g}"))
        return True

    def tell(self, message: str) -> None:
        """Make ``message`` the words for people on the present state, written before long: the last message wins."""
        self.message = message
        if self.has_started:
            self._host.has_words(self)

    async def checkpoint(self, value: Any) -> None:
        """Keep ``value``, which `encode_value` can write, for a later run. Waits while the store fails. Raises
        `ValueError` for a value that is too long, and `CodedError` (-31002) in a shielded scope of a task that has
        ended, or runs elsewhere, by now; elsewhere, its handler is cancelled here."""
        text, most = encode_value(value), self._host.settings.max_record_bytes
        if len(text) > most:
            raise ValueError(f"a checkpoint of {len(text)} bytes is longer than the {most} bytes that are kept")
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._starting is not None:
            await self._starting.wait()
        if self.on_restart == "resume":
            self._questions.forget()
        if self.has_started:
            awaits = self._questions.awaits
            await self._change(lambda record, _: checkpointed(record, text, awaits))
        else:
            self.checkpoint_before_start = text

    # End

    @property
    def needs_lease(self) -> bool:
        """True unless the task was cancelled because its record has ended or is ours no more. Read for thousands of
        tasks at a time."""
        return not (self._is_lost or self.is_external)

    @property
    def is_at_risk(self) -> bool:
        """True while the handler runs that another process must not run at the same time."""
        return self.needs_lease and not self.is_ended

    def hold(self, record: TaskRecord, until: float) -> None:
        """Run the task from now on as its ``record`` says, which nobody else may do before ``until``."""
        self.holder, self.epoch, self.mark, self.held_until = record.holder, record.epoch, record.mark, until

    def adopt(self, record: TaskRecord) -> bool:
        """Go on under a claim of this process that its ``record`` has, where no other process has run the task in
        between, and the answer to the claim is on its way, or was lost. Return whether that is so."""
        if self.holder is None or record.holder is None or record.epoch != self.epoch + 1:
            return False
        if _process_of(record.holder) != _process_of(self.holder):
            return False
        self.hold(record, self.held_until)  # a renewal will lengthen the lease
        return True

    def is_of(self, record: TaskRecord) -> bool:
        """Return whether ``record`` says that this process runs the task, or has run the task to its end."""
        return record.epoch == self.epoch and (record.phase.is_final or record.holder == self.holder)

    def renewed(self, until: float) -> None:
        """Note that nobody else may run the task before ``until``."""
        self.held_until = until

    async def keep(self, line: bytes | None) -> None:
        """Keep the reply to the request: see `KeptTask`."""
        self.is_ended = True
        if not self._is_left:
            await self._host.keep(self, line)

    def is_over(self) -> None:
        """Forget the task, which has ended here: see `KeptTask`."""
        self.stop_waiting()
        self._questions.let_go()
        self._host.forget(self)

    def expires(self, alarm: Alarm) -> None:
        """Take the alarm for the end of the time to live, which `is_over` stops."""
        self.stop_waiting()
        self._alarm = alarm

    def is_overdue(self) -> None:
        """Note that the time to live is over."""
        self._host.expire(self)

    def end(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel the handler, and all its child tasks, unless all have ended."""
        if not self.is_ended:
            self._is_lost |= cause in (CancelCause.LEASE, CancelCause.TASK)
            self.scope.end(cause, reason)

    # Exchanges

    def exchange(self) -> TaskExchange:
        """Return the exchange in which the request goes on as a task."""
        here, host = self.scope.exchange, self._host
        if self.scope.request.revision.tasks == "core":
            way = ClientWay(self.scope.request, self.scope.runner, here.lasting)
            self._client = CoreClient(host.questions, self.id, way)
            exchange = TaskExchange(here.state, way.outbox, here.peer, host.ending, self.id)
        else:
            exchange = TaskExchange(host.state, host.silence, here.peer, host.ending)
        exchange.belong_to(self)
        return exchange

    def take_up(self, record: TaskRecord) -> None:
        """Be the task of its request, which runs once more, with the answers that ``record`` has."""
        self.scope.task = self
        self._questions.take_again(record)
