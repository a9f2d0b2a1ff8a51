"""TaskHost runs the tasks of a running server, or of a client that is asked by one."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import TOO_BUSY, CodedError
from ..protocol.conversion.converters import unstructure
from ..runtime.cancellation import CancelCause
from ..runtime.outbox import Outbox
from ..state.stateless import StatelessState
from ..stores.task_record import Outcome, TaskPhase, TaskRecord
from ..stores.task_store import StoreFull
from .message_writer import MessageWriter
from .outcomes import EXPIRED, SERVER_STOPPED, TASK_LOST, failure, outcome_of, words_of
from .projections import core_created, extension_created
from .transitions import cancelled, ended, released

if TYPE_CHECKING:
    from ..runtime.requests.host import RequestHost
    from ..runtime.requests.runner import RequestRunner
    from ..state.connection_state import ConnectionState
    from .records import TaskRecords, Transition
    from .request_task import RequestTask

__all__ = ["TaskHost"]

logger = logging.getLogger("trio_mcp")

_WRITE_TIME: Final = 10.0
"""Longest time that the last write of a task may take."""
_TRIES: Final = 3
_TRY_AGAIN: Final = 0.5


class TaskHost:
    """The tasks that run here, in the nursery of ``host`` and within the bounds of ``runner``, with their ``records``.

    A task is a request whose handler runs on after the answer. No failure of a task, and none of the store, ends more
    than that task.
    """

    def __init__(self, host: RequestHost, runner: RequestRunner, records: TaskRecords) -> None:
        self.records = records
        self.settings = records.settings
        self.runner = runner
        self.ending = trio.Event()
        """Event set when the host starts to end: no further task is taken."""
        self.state: ConnectionState = StatelessState()
        """State of requests that are tasks and belong to no connection."""
        self.silence = Outbox(host.limits.high_water)
        """Outbox of tasks whose client gets no notifications."""
        self.silence.let_go()
        self.owner = secrets.token_urlsafe(9)
        """Name of this host in leases."""
        self._messages = MessageWriter(records, host.limits.progress_interval)
        self._limits = host.limits
        self._alarms = host.alarms
        self._nursery: trio.Nursery | None = None
        self._live: dict[str, RequestTask] = {}
        """Tasks that run here, by their ids."""
        self._callers = Counter[object]()
        self._has_tasks = trio.Event()
        self._emptied = trio.lowlevel.ParkingLot()
        records.on_change = self._noticed

    def __len__(self) -> int:
        """Return the number of tasks that run here."""
        return len(self._live)

    # Life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look after the tasks until cancelled. Tasks that run then are written down as failed, or given up for another
        process to run."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                if self.settings.store is None:
                    await self._has_tasks.wait()  # most servers never have a task
                nursery.start_soon(self.records.watch)
                nursery.start_soon(self._messages.run)
        finally:
            self._nursery = None
            self.ending.set()
            with trio.move_on_after(_WRITE_TIME, shield=True):
                for task in tuple(self._live.values()):
                    await self._cut(task)

    async def drain(self) -> None:
        """Take no further task, and wait until none runs here. Tasks that another process may run are given up at once;
        the others may go on for `Limits.drain_timeout`, and are cancelled then."""
        self.ending.set()
        for task in tuple(self._live.values()):
            if self._goes_on_elsewhere(task):
                task.end(CancelCause.SHUTDOWN, "the server is shutting down, and the task goes on elsewhere")
        with trio.move_on_after(self._limits.drain_timeout):
            await self._idle()
        for task in tuple(self._live.values()):
            task.end(CancelCause.SHUTDOWN, SERVER_STOPPED)
        await self._idle()

    async def _idle(self) -> None:
        while self._live:
            await self._emptied.park()

    def _goes_on_elsewhere(self, task: RequestTask) -> bool:
        return task.on_restart != "fail" and self.settings.store is not None

    # Start

    async def create(self, task: RequestTask) -> TaskRecord:
        """Keep the record of a new task, and return it. Raises `CodedError` (-31000) where a bound is reached, or the
        store fails."""
        scope, settings, now = task.scope, self.settings, self.records.now
        request, peer = scope.request, scope.exchange.peer
        if self.ending.is_set():
            raise CodedError(TOO_BUSY, "Shutting down: no new tasks are taken")
        most_of_caller = settings.max_running if peer.alone else settings.max_running_of_caller
        if len(self._live) >= settings.max_running or self._callers[task.caller] >= most_of_caller:
            raise CodedError(TOO_BUSY, "Too busy: too many tasks are running; try again later")
        params = encode_value(request.params)
        if len(params) > settings.max_record_bytes:
            raise CodedError(TOO_BUSY, "Too busy: the arguments are too long to be kept with a task")
        expires = None if task.ttl_ms is None else now + task.ttl_ms
        record = TaskRecord(
            id=task.id,
            scope=peer.principal or "",
            method=request.method.name,
            name=str(request.params.get("name", "")),
            params=params,
            revision=request.revision.name,
            capabilities=encode_value(unstructure(request.capabilities, request.revision)),
            on_restart=task.on_restart,
            created_at=now,
            updated_at=now,
            expires_at=expires,
            kept_until=None if expires is None else expires + int(settings.keep * 1000),
            poll_ms=int(settings.poll_interval * 1000),
            message=task.message,
            owner=self.owner,
            leased_until=now + int(settings.lease * 1000),
        )
        try:
            await self.records.store.create(record, most=settings.max_kept, most_of_scope=settings.max_kept_of_caller)
        except StoreFull:
            raise CodedError(TOO_BUSY, "Too busy: too many tasks are kept; try again later") from None
        except OSError:
            logger.exception("a task could not be kept")
            raise CodedError(TOO_BUSY, "Too busy: the task could not be kept; try again later") from None
        return record

    async def abandon(self, record: TaskRecord) -> None:
        """Cancel a task that was kept, and that its requestor never learns of."""
        with trio.move_on_after(_WRITE_TIME, shield=True):
            try:
                await self.records.change(
                    record.id, record.epoch, lambda kept, now: cancelled(kept, now, "the caller gave up")
                )
            except OSError:
                logger.exception("task %s could not be cancelled", record.id)

    def adopt(self, task: RequestTask, record: TaskRecord) -> None:
        """Answer the request of ``task``, whose ``record`` is kept, and let its handler go on here. Synchronous."""
        scope = task.scope
        created = core_created if scope.request.revision.tasks == "core" else extension_created
        self.hold(task, record)
        runner: RequestRunner = scope.runner  # pyright: ignore[reportAssignmentType]
        runner.hand_over(scope, self.runner, task.exchange(), created(record))
        task.take_questions()

    def hold(self, task: RequestTask, record: TaskRecord) -> None:
        """Run ``task`` here from now on, until `forget`."""
        self._has_tasks.set()
        self._live[task.id] = task
        self._callers[task.caller] += 1
        if record.expires_at is not None:
            left = max(0, record.expires_at - self.records.now) / 1000
            task.expires(self._alarms.set(trio.current_time() + left, partial(self._in_background, self._expire, task)))

    def _in_background(self, function: Callable[[RequestTask], Awaitable[None]], task: RequestTask) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(function, task)

    async def _expire(self, task: RequestTask) -> None:
        """End a task whose time to live is over."""
        outcome = failure(TASK_LOST, EXPIRED)
        await self.change(task, lambda record, now: ended(record, now, outcome, EXPIRED))
        task.end(CancelCause.DEADLINE, EXPIRED)

    # Changes

    def has_words(self, task: RequestTask) -> None:
        """Have the message of ``task`` written before long. Synchronous."""
        self._messages.has_words(task)

    async def change(self, task: RequestTask, transition: Transition) -> TaskRecord | None:
        """Carry out ``transition`` on the record of a task that runs here: see `TaskRecords.change`. A task that runs
        elsewhere by now, or has ended, is cancelled here. Raises nothing: a failure of the store is logged."""
        try:
            record = await self.records.change(task.id, task.epoch, transition)
        except OSError:
            logger.exception("a change of task %s could not be kept", task.id)
            return None
        self._compare(task, record)
        return record

    def _compare(self, task: RequestTask, record: TaskRecord | None) -> None:
        """Cancel a task that has ended, or runs elsewhere, as its record says; give its handler the answers."""
        if record is None or record.epoch != task.epoch:
            task.end(CancelCause.LEASE, "another process runs the task now")
        elif record.phase is TaskPhase.CANCELLED:
            task.end(CancelCause.TASK, record.cancel_reason)
        elif record.answers:
            task.deliver(record.answers)

    def _noticed(self, task_id: str) -> None:
        task = self._live.get(task_id)
        if task is not None and not task.is_looked_at:
            task.is_looked_at = True
            self._in_background(self._look_at, task)

    async def _look_at(self, task: RequestTask) -> None:
        task.is_looked_at = False
        try:
            record = await self.records.store.read(None, task.id)
        except OSError:
            logger.exception("task %s could not be read", task.id)
            return
        if task.id in self._live:
            self._compare(task, record)

    # End

    async def keep(self, task: RequestTask, line: bytes | None) -> None:
        """Keep the reply ``line`` as the outcome of ``task``; `None`: the task was cancelled."""
        with trio.move_on_after(_WRITE_TIME, shield=True):
            if line is None:
                await self._cut(task)
            else:
                await self._end(task, outcome_of(line, self.settings.max_record_bytes))

    async def _cut(self, task: RequestTask) -> None:
        """Write down that a task was cancelled before its end, where its record does not say so."""
        cancellation = task.scope.cancellation
        cause = None if cancellation is None else cancellation.cause
        if cause is CancelCause.LEASE:
            return
        if self.ending.is_set() and self._goes_on_elsewhere(task):
            await self._write(task, lambda record, _: released(record))
        else:
            words = SERVER_STOPPED if cancellation is None else cancellation.words
            await self._end(task, failure(TASK_LOST, f"the task was not run to its end: {words}"))

    async def _end(self, task: RequestTask, outcome: Outcome) -> None:
        await self._write(task, lambda record, now: ended(record, now, outcome, words_of(outcome) or task.message))

    async def _write(self, task: RequestTask, transition: Transition) -> None:
        for _ in range(_TRIES):
            try:
                await self.records.change(task.id, task.epoch, transition)
            except OSError:
                logger.exception("the end of task %s could not be kept", task.id)
                await trio.sleep(_TRY_AGAIN)
            else:
                return

    def forget(self, task: RequestTask) -> None:
        """Note that the handler of ``task`` has ended, with all that it started. Synchronous."""
        if self._live.pop(task.id, None) is None:
            return
        self._callers[task.caller] -= 1
        if not self._callers[task.caller]:
            del self._callers[task.caller]
        self._messages.forget(task)
        if not self._live:
            self._emptied.unpark_all()
