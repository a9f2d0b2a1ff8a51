"""RequestTask is the task that a request may become, and then is."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import trio

from ..jsonrpc.codec import decode_value, encode_value
from ..jsonrpc.errors import CodedError
from ..runtime.cancellation import CancelCause
from ..runtime.requests.progress import reportable
from ..stores.task_record import OnRestart, TaskRecord
from .task_exchange import TaskExchange
from .transitions import asked, checkpointed, withdrawn

if TYPE_CHECKING:
    from ..concurrency.alarms import Alarm
    from ..runtime.outbox import Outbox
    from ..runtime.requests.request_scope import RequestScope
    from ..runtime.requests.rounds import Question
    from ..state.connection_state import ConnectionState
    from .records import Transition
    from .settings import TaskSettings

__all__ = ["RequestTask", "TaskSurroundings"]

_ID_BYTES = 18


class TaskSurroundings(Protocol):
    """The host of tasks, as a task sees it: a `TaskHost`."""

    ending: trio.Event
    settings: TaskSettings
    state: ConnectionState
    """State of requests that are tasks and belong to no connection."""
    silence: Outbox
    """Outbox of tasks whose client gets no notifications."""

    async def create(self, task: RequestTask) -> TaskRecord:
        """Keep the record of a new task."""
        ...

    async def abandon(self, record: TaskRecord) -> None:
        """Cancel a task that was kept, and that its requestor never learns of."""
        ...

    def adopt(self, task: RequestTask, record: TaskRecord) -> None:
        """Answer the request of the task, and let its handler go on."""
        ...

    async def change(self, task: RequestTask, transition: Transition) -> TaskRecord | None:
        """Carry out ``transition`` on the record."""
        ...

    def has_words(self, task: RequestTask) -> None:
        """Have the message of the task written before long."""
        ...

    async def keep(self, task: RequestTask, line: bytes | None) -> None:
        """Keep the reply to the request as the outcome."""
        ...

    def forget(self, task: RequestTask) -> None:
        """Note that the handler has ended, with all that it started."""
        ...


class RequestTask:
    """The task of one request that runs in ``host``: until `start` a possibility, from then on kept in the store.

    ``ttl_ms``: milliseconds from the creation; `None`: for ever. ``must_be``: the request is answered with a task in
    any case. ``record``: the record of a task that runs once more.
    """

    __slots__ = (
        "_alarm",
        "_host",
        "_starting",
        "attempt",
        "caller",
        "epoch",
        "has_started",
        "id",
        "is_looked_at",
        "message",
        "must_be",
        "on_restart",
        "restored",
        "scope",
        "ttl_ms",
    )

    def __init__(
        self,
        host: TaskSurroundings,
        scope: RequestScope,
        *,
        ttl_ms: int | None,
        on_restart: OnRestart,
        must_be: bool = False,
        record: TaskRecord | None = None,
    ) -> None:
        self._host = host
        self.scope = scope
        self.id = secrets.token_urlsafe(_ID_BYTES) if record is None else record.id
        """Unguessable name of the task (2025-11-25 tasks, Task Isolation)."""
        self.ttl_ms = ttl_ms
        self.on_restart: OnRestart = on_restart
        self.must_be = must_be
        self.caller = scope.exchange.caller
        """The party that the bounds of running tasks hold for."""
        self.has_started = record is not None
        self.epoch = 0 if record is None else record.epoch
        """Number of the ownership under which this process runs the task."""
        self.message: str | None = None
        """Last words of the handler for people."""
        self.is_looked_at = False
        """True while the record is about to be read, because it may have changed."""
        self.restored: bytes | None = None if record is None else record.checkpoint
        """Checkpoint of the run before; `None` where there is none."""
        self.attempt = 1 if record is None else record.attempt
        self._starting: trio.Event | None = None
        self._alarm: Alarm | None = None

    # Start

    @property
    def grace(self) -> float:
        """Seconds after which the task starts by itself."""
        return self._host.settings.grace

    def start_after(self, seconds: float) -> None:
        """Start the task after ``seconds``, unless the request is answered before."""
        due = trio.current_time() + seconds
        self._alarm = self.scope.runner.alarms.set(due, partial(self._start_now, seconds))

    def _start_now(self, seconds: float) -> None:
        nursery = self.scope.abort.nursery
        if nursery is None or self.has_started:
            return
        if self.scope.sends:
            nursery.start_soon(self._start_where_possible)
        else:
            self.start_after(seconds)  # the client has the questions, and time to answer

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
        """Keep the task, and answer the request with it. Return at once where that was done before.

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
        record = await host.create(self)
        try:
            await self._between_rounds()
        finally:
            if not scope.sends:  # the caller gave up, and never learns of the task
                await host.abandon(record)
        if not scope.sends:
            await trio.lowlevel.checkpoint()
            return
        self.stop_waiting()
        self.has_started = True
        host.adopt(self, record)

    async def _between_rounds(self) -> None:
        """Wait until the request is not answered with questions."""
        while self.scope.rounds is not None and not self.scope.sends and self.scope.abort.from_outside is None:
            await self.scope.rounds.resumed()
            await trio.lowlevel.checkpoint()

    # Questions

    def take_questions(self) -> None:
        """Have the questions of the handler from now on kept with the task, which tells its client of them."""
        self.scope.collect_questions(self._send, self._given_up)

    def _send(self, questions: Sequence[Question]) -> None:
        nursery = self.scope.abort.nursery
        assert nursery is not None, "who asks has a nursery"
        nursery.start_soon(self._publish, questions)

    async def _publish(self, questions: Sequence[Question]) -> None:
        texts = {
            each.key: encode_value({"method": each.request.method, "params": each.request.params or {}})
            for each in questions
        }
        await self._host.change(self, lambda record, now: asked(record, now, texts))

    def deliver(self, answers: Mapping[str, bytes]) -> None:
        """Give the handler the answers that it waits for."""
        rounds = self.scope.rounds
        if rounds is not None:
            rounds.deliver({key: decode_value(text) for key, text in answers.items() if rounds.waits_for(key)})

    def _given_up(self, key: str) -> None:
        nursery = self.scope.abort.nursery
        if nursery is not None:
            nursery.start_soon(self._withdraw, key)

    async def _withdraw(self, key: str) -> None:
        await self._host.change(self, lambda record, now: withdrawn(record, now, (key,)))

    # Telling

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
        """Keep ``value``, which `encode_value` can write, for a later run."""
        text = encode_value(value)
        await self._host.change(self, lambda record, _: checkpointed(record, text))

    # End

    async def keep(self, line: bytes | None) -> None:
        """Keep the reply to the request: see `Kept`."""
        await self._host.keep(self, line)

    def is_over(self) -> None:
        """Forget the task, which has ended here: see `Kept`."""
        self.stop_waiting()
        self._host.forget(self)

    def expires(self, alarm: Alarm) -> None:
        """Take the alarm for the end of the time to live, which `is_over` stops."""
        self.stop_waiting()
        self._alarm = alarm

    def end(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel the handler, and all that it started."""
        self.scope.end(cause, reason)

    def exchange(self) -> TaskExchange:
        """Return the exchange in which the request goes on as a task."""
        here, host = self.scope.exchange, self._host
        if self.scope.request.revision.tasks == "core":
            return TaskExchange(self, here.state, here.lasting_outbox, here.peer, host.ending)
        return TaskExchange(self, host.state, host.silence, here.peer, host.ending)
