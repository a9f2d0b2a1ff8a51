"""`TaskHost`: runs background tasks, either those of a server, or those of a client whose server has requested them."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
import trio

from ..concurrency.time_limits import Graces
from ..concurrency.wakeups import Sleeper
from ..jsonrpc.errors import TOO_BUSY, CodedError
from ..protocol.errors import NoBackChannel
from ..runtime.cancellation import CancelCause
from ..runtime.outbox import Outbox
from ..runtime.peer import ANY_CLIENT
from ..runtime.requests.runner import RequestRunner
from ..state.stateless import StatelessState
from ..stores.task_store import StoreFull, TaskRecord, Uncertain, UnreadableRecord
from .core_questions import CoreQuestions
from .record_views import EXPIRED, SERVER_STOPPED, core_created, extension_created, store_unreachable
from .record_writers import MessageWriter, OutcomeReplies, OutcomeWriter, change_with_retries
from .records import TaskRecords, expired
from .request_task import RUNS_ELSEWHERE, RequestTask, new_holder
from .task_methods import OwnTasks

if TYPE_CHECKING:
    from ..runtime.limits import Load
    from ..runtime.requests.host import RequestHandler, RequestHost
    from ..state.connection import ConnectionState
    from .leases import ClaimedLease, Leases
    from .records import TaskSettings, Transition

_HURRIED_GRACE: Final = 0.3
_SHORT_TIME: Final = 5.0
"""Seconds allowed for writing a task record if other code waits for the write."""


class TaskHost:
    """Runs background tasks in this process. The trio tasks for them run in the nursery of ``host``.

    ``handler`` handles the requests that have become tasks.

    A task is a request whose handler keeps running after the answer. A failure of a task, or of the store, ends only
    that task. If `TaskSettings.store` is given, tasks abandoned by other processes also run here, if ``offers`` returns
    the names of their tools.
    """

    def __init__(
        self,
        host: RequestHost,
        handler: RequestHandler,
        outcomes: OutcomeReplies,
        settings: TaskSettings,
        offers: Callable[[], Collection[str]],
    ) -> None:
        self.records = records = TaskRecords(settings, host.load)
        records.on_change = self._record_changed
        records.on_hint = self._hint_received
        records.on_unsaved_cancel = self._cancel
        records.held_marks = self._marks
        self.settings = settings
        graces = Graces(host.limits.cleanup_grace)
        self.runner = RequestRunner(host, handler, graces, outcomes, _reject_request, None, peer=ANY_CLIENT)
        self.ending = trio.Event()
        """Set when the host starts to shut down, after which it accepts no new tasks."""
        self.state: ConnectionState = StatelessState()
        """Connection state of requests that run as tasks and belong to no connection."""
        self.silence = Outbox(host.limits.high_water)
        """Outbox of tasks that send no notifications."""
        self.silence.close()
        self.process = secrets.token_urlsafe(9)
        """Identifies this process in the holder tokens of its tasks."""
        self._holder = new_holder(self.process)
        """Holder token of the tasks that this host creates."""
        self._last: TaskRecord | None = None
        """The task record that was created last, without its parameters."""
        self.questions = CoreQuestions(records, self.in_background)
        """Sends elicitation and sampling requests of tasks in the form of 2025-11-25."""
        self.own_tasks = OwnTasks(records.settings)
        """The tasks created by each connection without a principal."""
        self.live = LiveTasks(records.settings, host.load)
        self.offers = offers
        """Returns the names of the tools whose tasks can run again in this process."""
        self._leases: Leases | None = None
        """The leases of the tasks that run in this process. Used while the host runs and the store is shared with other
        processes."""
        self.outcome_writer = OutcomeWriter(records, self.ending)
        self.message_writer = MessageWriter(records, host.limits.progress_interval)
        self._limits = host.limits
        self.alarms = host.alarms
        self._hinted: dict[str, bool] = {}
        """Ids of the tasks that run in this process and whose records may have changed. If the value is true, the
        record must be read even if its mark is the same, because a client that can respond to input requests may have
        connected or disconnected."""
        self._reader = Sleeper()
        self._nursery: trio.Nursery | None = None
        self._early: list[tuple[Callable[..., Awaitable[None]], tuple[object, ...]]] | None = []
        """Functions to start in the background when `run` begins. `None` once `run` has begun."""
        self._has_tasks = trio.Event()
        self._drain_scope = trio.CancelScope()
        """Cancel scope in which tasks may still finish while the host shuts down."""
        self._drained = trio.Event()
        self._cut_off: tuple[RequestTask, ...] = ()
        """Tasks that were running when the host was cancelled."""

    def __len__(self) -> int:
        """Return the number of background tasks that run in this process."""
        return len(self.live)

    # Life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled: renew leases, delete expired records and do other background work.

        On cancellation, running tasks are cancelled first, before any of their handlers resumes, and get the cause.
        Then they are recorded as failed, or released for another process to run.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._serve)
                for function, args in self._early or ():
                    nursery.start_soon(function, *args)
                self._early = None
                task_status.started()
                await self._asleep()
        finally:
            self._cut()
            await self.outcome_writer.write_cut_off(self._cut_off)
            # Break the reference cycle between this `TaskHost` and its `TaskRecords`, so that both are freed at once.
            self.records.close()
            self._cut_off = ()
            self._leases = None
            self.runner.detach()
            self.questions.close()

    async def _serve(self) -> None:
        is_shared = self.settings.store is not None
        if not is_shared:
            await self._has_tasks.wait()  # most servers never run a background task, so wait for the first one
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.message_writer.run)
            nursery.start_soon(self._read_hinted)
            nursery.start_soon(self.records.delete_expired)
            nursery.start_soon(self.records.poll)
            if is_shared:
                from .leases import Leases  # this module is imported late, so that servers without tasks start faster

                self._leases = Leases(self)
                nursery.start_soon(self._leases.run)
                nursery.start_soon(self.records.watch)

    async def _asleep(self) -> None:
        def abort(_: Any) -> trio.lowlevel.Abort:  # trio calls the function `abort` before it wakes any trio task
            self._cut()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _cut(self) -> None:
        if self._nursery is not None:
            self._nursery = None
            self.ending.set()
            self.outcome_writer.limit_time(0.0)
            self._cut_off = tuple(self.live)
            self._cancel_all()

    def _cancel_all(self) -> None:
        for task in self.live:
            task.cancel(CancelCause.SHUTDOWN, SERVER_STOPPED)

    def shut_down(self, *, hurry: bool = False) -> None:
        """Refuse new background tasks from now on.

        Tasks that another process may continue are released at once. The others have `Limits.drain_timeout` to end, and
        are then cancelled. With ``hurry``, all of this takes less than a second.
        """
        if not self.ending.is_set():
            self.ending.set()
            self._drain_scope.deadline = trio.current_time() + self._limits.drain_timeout
            self.outcome_writer.limit_time(self._limits.drain_timeout)
            self.in_background(self._drain)
        if hurry:
            self.runner.graces.shorten(_HURRIED_GRACE)
            self._drain_scope.cancel(reason="a second signal came")

    async def drain(self) -> None:
        """Refuse new background tasks, and wait until none is running in this process."""
        self.shut_down()
        await self._drained.wait()

    async def _drain(self) -> None:
        for task in self.live:
            if self.outcome_writer.goes_on_elsewhere(task):
                task.cancel(CancelCause.SHUTDOWN, "the server is shutting down, and the task continues elsewhere")
        with self._drain_scope:
            await self.live.emptied()
        self.runner.graces.shorten(self._limits.shutdown_grace)
        self._cancel_all()
        await self.live.emptied()
        self._drained.set()

    # Start

    async def create(self, task: RequestTask, *, delegated: bool) -> TaskRecord:
        """Store the record of a new background task, and return it.

        With ``delegated``, other code than the handler does the work. Raises `CodedError` (-31000) if a limit is
        reached or the store fails.
        """
        if self.ending.is_set():
            raise CodedError(TOO_BUSY, "Shutting down: new tasks are refused")
        self.live.admit(task, alone=task.scope.exchange.peer.alone)
        try:
            return await self.create_record(task, delegated=delegated)
        except BaseException:
            self.live.release(task)
            raise

    async def create_record(self, task: RequestTask, *, delegated: bool) -> TaskRecord:
        """Store the record of a new background task, and return it.

        Unlike `create`, this doesn't count the task towards the limit of running tasks.
        """
        from .task_exchange import new_record  # lazy import, see `_serve`

        holder, begun = None if delegated else self._holder, trio.current_time()
        new = new_record(task, holder, self.settings, self._last)
        self._last = attrs.evolve(new, params=b"")
        self._has_tasks.set()
        if holder is not None:
            self.live.pending[task.id] = task
        try:
            record = await self.records.create(new, task.ttl_ms)
        except BaseException as error:
            self.live.pending.pop(task.id, None)
            if isinstance(error, StoreFull):
                raise CodedError(TOO_BUSY, "Too busy: too many tasks are stored; try again later") from None
            if isinstance(error, Uncertain):
                # The store may have stored the new task's record, or may store it later.
                # The client gets an error, so this record must not stay.
                # `discard` deletes the record, or prevents the store from storing it.
                self.in_background(self.records.discard, new.id)
            if isinstance(error, Exception):  # already logged
                raise store_unreachable() from None
            raise
        # A lease is the time for which a process has claimed a task. It may have expired while the record was stored.
        # If this process has claimed the task again since then, `task.holder` is already set.
        if task.holder is None:
            task.acquire(record, begun + self.settings.lease)
        self.own_tasks.add(task.scope, record.id)
        return record

    async def has_lease_left(self, task: RequestTask) -> bool:
        """Return whether the lease of ``task`` is long enough for the task to start.

        The lease may have become too short while the task's record was stored, or while the client answered an input
        request.
        """
        return self._leases is None or task.holder is None or await self._leases.has_lease_left(task)

    async def abandon(self, task: RequestTask, record: TaskRecord) -> None:
        """Delete the record of a background task, because the client will never get the task's id."""
        self.live.release(task)
        self.live.pending.pop(record.id, None)
        with trio.move_on_after(_SHORT_TIME, shield=True) as scope:
            await self.records.discard(record.id)
        if scope.cancelled_caught:
            self.in_background(self.records.discard, record.id)

    def adopt(self, task: RequestTask, record: TaskRecord) -> None:
        """Respond to the client's request with the MCP task in ``record``, and continue the request's handler as that
        task. Synchronous."""
        from .task_exchange import exchange_for  # lazy import, see `_serve`

        scope = task.scope
        created = core_created if scope.request.revision.tasks == "core" else extension_created
        self._hold(task, record)
        runner: RequestRunner = scope.runner  # pyright: ignore[reportAssignmentType]
        runner.hand_over(scope, self.runner, exchange_for(task, self), created(record))
        if scope.rounds is not None:
            self.collect_questions(task)
        # Store the request in a compact form, because ten thousand background tasks may be waiting in memory.
        scope.request.pack_as(record.params)
        scope.exchange.peer.pack()

    def collect_questions(self, task: RequestTask) -> None:
        """From now on, store the input requests of the handler of ``task`` in the task record."""
        from .task_exchange import TaskQuestions  # lazy import, see `_serve`

        TaskQuestions(task).collect()

    def run_again(self, record: TaskRecord, until: float) -> None:
        """Run the handler of a background task again, after the task was claimed from another process.

        The lease lasts until the time ``until``. Raises `LookupError` or `ValueError` if its record can't be used.
        """
        from .task_exchange import restarted  # lazy import, see `_serve`

        task = restarted(self, self.runner, record, self.records.now)
        task.acquire(record, until)
        self.live.reserve(task)
        self._hold(task, record)
        self.runner.start(task.scope)

    def _hold(self, task: RequestTask, record: TaskRecord) -> None:
        """Count ``task`` as running in this process, until `remove` is called.

        Call `LiveTasks.admit` or `LiveTasks.reserve` first, so that the limit isn't exceeded.
        """
        self._has_tasks.set()
        self.live.pending.pop(task.id, None)
        self.live.by_id[task.id] = task
        if record.expires_at is not None:
            left = max(0, record.expires_at - self.records.now) / 1000
            task.set_expiry(trio.current_time() + left)

    def in_background(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run ``function`` in the background. Does nothing if the host has ended."""
        if self._nursery is not None:
            self._nursery.start_soon(function, *args)
        elif self._early is not None:
            self._early.append((function, args))

    def expire(self, task: RequestTask) -> None:
        """End ``task`` with an error, because its time to live is over. Synchronous."""
        self.in_background(self._expire, task)

    async def _expire(self, task: RequestTask) -> None:
        with trio.move_on_after(_SHORT_TIME):  # if storing takes longer, `TaskHost.remove` stores the outcome later
            await self.change(task, expired)
        task.cancel(CancelCause.DEADLINE, EXPIRED)

    # Changes

    async def change(self, task: RequestTask, transition: Transition) -> TaskRecord | None:
        """Apply ``transition`` to the record of a running background task: see `change_with_retries`.

        If the new record has ended or has another holder, cancel the task in this process.
        """
        record = await change_with_retries(self.records, task, transition)
        if record is None or task.accepts(record):
            self._compare(task, record)
        else:
            self._record_changed(task.id, None)
        return record

    def _compare(self, task: RequestTask, record: TaskRecord | None) -> None:
        """Cancel ``task`` if its latest ``record`` shows that the task has ended or belongs to another process.

        Otherwise pass the answers in the record to the task's handler.
        """
        if record is not None:
            task.reacquire(record)
            if task.client is not None:
                task.client.notify(record)
            task.mark = record.mark
            if record.is_external:
                task.holder = None
        if record is None or not task.is_of(record):
            task.cancel(CancelCause.LEASE, RUNS_ELSEWHERE)
        elif record.outcome is not None and record.message == EXPIRED:
            task.cancel(CancelCause.DEADLINE, EXPIRED)
        elif record.phase.is_final:
            task.cancel(CancelCause.TASK, record.cancel_reason)
        elif record.answers:
            task.deliver(record.answers)

    def _record_changed(self, task_id: str, record: TaskRecord | None) -> None:
        task = self.live.by_id.get(task_id)
        if task is None or task.has_ended:
            return
        if record is not None and task.accepts(record):
            self._compare(task, record)
        else:
            self._hinted[task_id] = True
            self._reader.wake()

    def _hint_received(self, task_id: str) -> None:
        if self.live.by_id.get(task_id) is not None:
            self._hinted.setdefault(task_id, False)
            self._reader.wake()

    async def _read_hinted(self) -> None:
        """Read the records of background tasks that the store has reported as changed, until cancelled.

        Most notifications are about our own writes, and thousands may arrive together. One request for marks finds the
        records that differ from what this process knows.
        """
        while True:
            while not self._hinted:
                await self._reader.sleep()
            hinted, self._hinted = self._hinted, {}
            with suppress(Exception):  # the error was already logged, and the store is polled again soon
                marks = await self.records.store.marks(tuple(hinted))
                for task_id, is_asked_for in hinted.items():
                    task = self.live.by_id.get(task_id)
                    if task is None or task.has_ended:
                        continue
                    if is_asked_for or marks.get(task_id) != task.mark:
                        with suppress(UnreadableRecord):  # affects only this task
                            await self._read(task)

    async def _read(self, task: RequestTask) -> None:
        while self.live.by_id.get(task.id) is task:
            known = task.holder, task.mark
            kept = await self.records.store.read(None, task.id)
            if known == (task.holder, task.mark):
                # If this process changed or claimed the task during the read, the record may be outdated: read again.
                break
        else:
            return
        if self.live.by_id.get(task.id) is task:
            self._compare(task, None if kept is None else kept.record)

    def _marks(self) -> Mapping[str, bytes]:
        """Return the last known marks of all background tasks that run in this process. A mark identifies a version of
        a task record.

        A different mark in the store shows that another process has changed the record, to answer input requests or to
        cancel the task.
        """
        return {task.id: task.mark for task in self.live}

    def _cancel(self, task_id: str, reason: str | None) -> None:
        """Cancel a background task that runs in this process. The store failed to record the cancellation."""
        task = self.live.by_id.get(task_id)
        if task is not None:
            task.cancel(CancelCause.TASK, reason)

    # End

    def remove(self, task: RequestTask, *, was_cut_off: bool) -> None:
        """Remove ``task``, because its handler and child tasks have ended in this process. Synchronous.

        If ``was_cut_off`` is true, the task's outcome isn't stored yet, and is stored in the background.
        """
        self.live.remove(task)
        self.message_writer.unwritten.pop(task.id, None)
        if was_cut_off:
            self.in_background(self.outcome_writer.persist, task, None)


class LiveTasks:
    """The background tasks that run in this process, by id. The number of running tasks is limited.

    ``load`` counts the running tasks.

    Each task has a place, reserved before its record is stored. So tasks that are about to start also count towards the
    limits of ``settings``.
    """

    def __init__(self, settings: TaskSettings, load: Load) -> None:
        self._settings = settings
        self._load = load
        self.by_id: dict[str, RequestTask] = {}
        self.pending: dict[str, RequestTask | ClaimedLease] = {}
        """This process's tasks that don't run yet, by id: claimed tasks, and new tasks whose request isn't answered
        yet. The leases of these tasks are renewed as well."""
        self._places = 0
        self._held = Counter[object]()
        """Numbers of places, by caller, and by part of a caller. `None`, the part of some tasks, has no number."""
        self._emptied = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[RequestTask]:
        """Iterate over a snapshot of the running tasks, oldest first."""
        return iter(tuple(self.by_id.values()))

    def find(self, task_id: str) -> RequestTask | None:
        """Return the background task with this id if it runs in this process or is about to start; otherwise `None`."""
        found = self.by_id.get(task_id) or self.pending.get(task_id)
        return found if isinstance(found, RequestTask) else None

    @property
    def room(self) -> int:
        """How many more background tasks may start in this process."""
        return max(0, self._settings.max_running - self._places)

    def admit(self, task: RequestTask, *, alone: bool) -> None:
        """Count ``task``, a new background task, as running, unless too many tasks are already running.

        Unless ``alone``, its caller gets no more places than it leaves free for others. Within a caller, each part
        (connection or session) gets no more places than it leaves free for the other parts. Raises `CodedError`
        (-31000) if there is no place.
        """
        most = self._settings.max_running if alone else self._settings.max_running_of_caller
        held = self._held[task.caller] + self._held[task.part]
        if self._places >= self._settings.max_running or held >= most:
            raise CodedError(TOO_BUSY, "Too busy: too many tasks are running; try again later")
        self.reserve(task)

    def reserve(self, task: RequestTask) -> None:
        """Count ``task``, which this process has claimed, as a running background task. Check first that `room` is
        positive."""
        self._places += 1
        self._load.tasks += 1
        self._held.update({task.caller, task.part} - {None})

    def release(self, task: RequestTask) -> None:
        """Undo `admit` or `reserve`: stop counting ``task`` as a running background task."""
        self._places -= 1
        self._load.tasks -= 1
        for holder in {task.caller, task.part} - {None}:
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]

    def remove(self, task: RequestTask) -> None:
        """Remove a background task that has ended in this process, and stop counting it as running."""
        del self.by_id[task.id]
        self.release(task)
        if not self.by_id:
            self._emptied.unpark_all()

    async def emptied(self) -> None:
        """Wait until no background task is running in this process."""
        while self.by_id:
            await self._emptied.park()


async def _reject_request(*_: object, **__: object) -> NoReturn:
    raise NoBackChannel("cannot send a request to the client: a restarted task has no connection to its client")
