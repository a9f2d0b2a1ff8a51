"""`TaskRecords`: reads and changes the records of background tasks, and waits for their changes. `TaskSettings`: the
store and the limits of a server's or client's tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

import attrs
import trio

from ..classes import frozen, not_negative, positive
from ..concurrency.contexts import contextmanager
from ..concurrency.wakeups import ChangeSignal
from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..runtime.limits import Load
from ..stores.memory import MemoryTaskStore
from ..stores.task_store import (
    HintsLost,
    LoggedStore,
    StoreFull,
    TaskCursor,
    TaskRecord,
    TaskStore,
    Uncertain,
    new_mark,
)
from .record_views import EXPIRED, TASK_LOST, failure
from .transitions import answered, cancelled, with_outcome

logger = logging.getLogger("trio_mcp")

Transition: TypeAlias = Callable[[TaskRecord, int], TaskRecord | None]
"""Function that takes a task record and the time, and returns the next record. It returns `None` if nothing changes."""

_RETRY: Final = 1.0
_AGAIN: Final = 0.5
_SWEEP: Final = 10.0
"""Seconds between two deletions of expired task records."""
_MOST_DELETED: Final = 1000
"""Maximum number of task records that are deleted at once."""
_TRIES: Final = 3
"""Number of times that a write with an uncertain outcome is tried."""
_LONGEST_PLACE: Final = 18


@frozen(kw_only=True)
class TaskSettings:
    """The store and the limits of background tasks. Times are in seconds."""

    store: TaskStore | None = None
    """The store for task records. With `None`, a `MemoryTaskStore` is used, which is lost when the server ends."""
    grace: float = attrs.field(default=1.0, validator=not_negative)
    """Time after which a call becomes a task, if the server decides that. A call that ends earlier gets an ordinary
    response. If the handler sends a request to the client earlier, that request belongs to the call and not to the
    task. `RequestContext.task` can start the task sooner."""
    ttl: float = attrs.field(default=3600.0, validator=positive)
    """Time to live of a task from its creation, unless the client requests another time. A task that hasn't ended by
    then is cancelled and fails. ``math.inf`` means no limit."""
    max_ttl: float = attrs.field(default=86_400.0, validator=positive)
    """Maximum time to live that a client can request for a task. Longer times are reduced to the maximum."""
    retention: float = attrs.field(default=60.0, validator=not_negative)
    """Time after ``ttl`` for which the task record can still be read."""
    poll_interval: float = attrs.field(default=1.0, validator=positive)
    """Recommended time between two polls by a client."""
    max_running: int = attrs.field(default=10_000, validator=positive)
    """Maximum number of tasks that run concurrently in this process. If it is reached, a call that must be a task gets
    error -31000, and any other call gets an ordinary response."""
    max_running_of_caller: int = attrs.field(default=1000, validator=positive)
    """Maximum number of tasks that run concurrently for one caller: a principal, or without a principal an address (see
    `Limits`). One connection or session of the caller can use at most as many as it leaves free for the caller's other
    connections. The only client of a server on stdio may use all of ``max_running``."""
    max_kept: int = attrs.field(default=100_000, validator=positive)
    """Maximum number of task records in the store, including ended tasks. If it is reached, calls are answered as for
    ``max_running``."""
    max_kept_of_caller: int = attrs.field(default=20_000, validator=positive)
    """Maximum number of task records of one principal. All clients without a principal count as one principal."""
    max_record_bytes: int = attrs.field(default=4 * 1024 * 1024, validator=positive)
    """Maximum size in bytes of a task's parameters, of its outcome, of a checkpoint, and of the answers sent at once.
    The limit applies to each of them. A task with a larger outcome fails."""
    max_attempts: int = attrs.field(default=3, validator=positive)
    """Maximum number of runs before a task fails, if its tool is declared safe to run again. Runs that a graceful
    shutdown ends don't count."""
    lease: float = attrs.field(default=30.0, validator=positive)
    """Time without a renewal after which a process is considered dead, and its tasks are taken over."""
    look_interval: float = attrs.field(default=5.0, validator=positive)
    """Maximum time until a change of a task is noticed, even if the store's notification was lost."""


DEFAULT_TASKS = TaskSettings()


class TaskRecords:
    """Reads and changes the task records in the store that ``settings`` specifies, and waits for changes of the
    records.

    Callers pass the ``scope`` of a task: the principal, or an empty string without authentication. Records are read
    from the store each time, since other processes may change them. Any method raises `OSError` if the store fails;
    that has then been logged.
    """

    def __init__(self, settings: TaskSettings, load: Load | None = None) -> None:
        self.settings = settings
        self.load = load or Load()
        """The counters of the server."""
        self.store = LoggedStore(MemoryTaskStore() if settings.store is None else settings.store)
        self._observers: dict[str, set[Callable[[str], None]]] = {}
        self._ends: dict[str, int] = {}
        """The time at which each observed task's time to live ends."""
        self.on_change: Callable[[str, TaskRecord | None], None] | None = None
        """Function that is called with the id of a task that may have changed, and its record if this process has
        it."""
        self.on_hint: Callable[[str], None] | None = None
        """Function that is called with each task id that the store reports as changed, also after writes of this
        process."""
        self.held_marks: Callable[[], Mapping[str, bytes]] = dict
        """Function that returns the ids and marks of further records to watch."""
        self.on_unsaved_cancel: Callable[[str, str | None], None] | None = None
        """Function that is called with the task id and the reason if a cancellation cannot be written."""
        self._clock_offset: float | None = None
        """Milliseconds by which the store's clock is ahead of trio's clock. `None` until the store first answers."""
        self._hints_lost = trio.Event()

    @property
    def now(self) -> int:
        """The store's current time in milliseconds since the epoch, calculated from its last response."""
        return int(trio.current_time() * 1000 + (self._clock_offset or 0.0))

    async def read(self, scope: str | None, task_id: str) -> TaskRecord | None:
        """Return the record of a background task.

        Returns `None` if the task doesn't exist in ``scope`` (the owner's scope), or its record has expired.
        """
        kept = await self.store.read(scope, task_id)
        if kept is None:
            return None
        self._clock_offset = kept.now - trio.current_time() * 1000
        record = kept.record
        if record.kept_until is not None and record.kept_until < kept.now:
            return None
        if task_id in self._observers and record.expires_at is not None:
            self._ends[task_id] = record.expires_at
        is_overdue = record.expires_at is not None and record.expires_at <= kept.now and record.leased_until < kept.now
        if is_overdue and not record.phase.is_final:
            # The task's time to live is over and no process runs the task, so store here that it has ended.
            return await self.change(task_id, None, expired)
        return record

    async def page(self, scope: str, cursor: str | None, limit: int) -> tuple[list[TaskRecord], str | None]:
        """Return a page of the task records of ``scope`` (the owner's scope), oldest first, and the cursor of the next
        page. The cursor is `None` on the last page.

        ``cursor`` is the cursor that came with the previous page. It stays valid when that page's records are gone.
        Raises `CodedError` (-32602) if it isn't a cursor.
        """
        found = await self.store.page(scope, None if cursor is None else _position(cursor), limit + 1)
        page, records = found[:limit], list[TaskRecord]()
        for record in page:
            is_old = record.expires_at is not None and (self._clock_offset is None or record.expires_at <= self.now)
            now = await self.read(scope, record.id) if is_old and record.outcome is None else record
            if now is not None:
                records.append(now)
        is_last = len(found) <= limit or not page
        return records, None if is_last else f"{page[-1].position}.{page[-1].id}"

    # Changes

    async def create(self, new: TaskRecord, ttl_ms: int | None) -> TaskRecord:
        """Store a new task record within the limits of the settings, and return it. See `TaskStore.create`."""
        settings = self.settings
        create = partial(
            self.store.create,
            new,
            lease_ms=int(settings.lease * 1000),
            ttl_ms=ttl_ms,
            retention_ms=int(settings.retention * 1000),
            limit=settings.max_kept,
            scope_limit=settings.max_kept_of_caller,
        )
        try:
            record = await create()
        except StoreFull:
            if not await self.store.expire(limit=_MOST_DELETED):
                raise
            record = await create()
        self._clock_offset = record.created_at - trio.current_time() * 1000
        return record

    async def discard(self, task_id: str) -> None:
        """Delete a task record whose id no client has received. Retries while the store fails.

        If the record isn't stored yet, prevent it from being stored later.
        """
        keep = int((self.settings.retention + self.settings.lease) * 1000)
        while True:
            with suppress(Exception):  # already logged
                await self.store.discard(task_id, retention_ms=keep)
                return
            await trio.sleep(_AGAIN)

    async def delete_expired(self) -> None:
        """Delete expired task records periodically, until cancelled."""
        while True:
            await trio.sleep(_SWEEP)
            with suppress(Exception):  # already logged
                while await self.store.expire(limit=_MOST_DELETED) == _MOST_DELETED:
                    pass

    async def change(self, task_id: str, holder: str | None, transition: Transition) -> TaskRecord | None:
        """Change a stored task record with the function ``transition``, and return the new record.

        If this call is cancelled, the store contains either the whole change or nothing of it.

        A transition that changes nothing leaves the record unchanged. Returns `None` if there is no record (any more),
        or if a ``holder`` is given, and a task that hasn't ended has another holder.

        Raises `Uncertain` if the store repeatedly reported that the write may or may not have happened.
        """
        following, tries = None, 0
        while True:
            kept = await self.store.read(None, task_id)
            if kept is None:
                return None
            self._clock_offset = kept.now - trio.current_time() * 1000
            record = kept.record
            if following is not None and record.mark == following.mark:  # kept after all
                break
            if holder is not None and record.holder != holder and not record.phase.is_final:
                self.load.refused_writes += 1
                return None
            following = transition(record, kept.now)
            if following is None:
                return record
            following = attrs.evolve(following, mark=new_mark())
            gives_up = following.holder is None and record.holder is not None
            try:
                if await self.store.change(following, expected_mark=record.mark, holder=holder, give_up=gives_up):
                    break
            except Uncertain:
                tries += 1
                if tries == _TRIES:
                    raise
        self.changed(task_id, following)
        return following

    async def answer(self, scope: str, task_id: str, answers: Mapping[str, bytes]) -> TaskRecord | None:
        """Store a client's responses to the input requests of a task, and return the changed task record.

        Returns `None` if the task doesn't exist in ``scope``.

        Unknown keys are ignored. Raises `CodedError` (-32602) if the responses are too long.
        """
        if await self.read(scope, task_id) is None:
            return None
        if sum(map(len, answers.values())) > (most := self.settings.max_record_bytes):
            raise CodedError(INVALID_PARAMS, f"Invalid params: inputResponses must have at most {most} bytes")
        return await self.add_answers(task_id, answers)

    async def add_answers(self, task_id: str, answers: Mapping[str, bytes]) -> TaskRecord | None:
        """Store a client's responses to the input requests of a task in the task record. See `answer`."""
        return await self.change(task_id, None, lambda record, now: answered(record, now, answers))

    async def cancel(self, scope: str, task_id: str, reason: str | None) -> tuple[TaskRecord, bool] | None:
        """Cancel a background task. Return the task record, and whether this call has cancelled the task.

        Returns `None` if the task doesn't exist in ``scope``.

        A task that has ended doesn't change. If the record cannot be written, a handler that runs here is cancelled
        anyway before `OSError` is raised, and the record is updated once the store works.
        """
        if await self.read(scope, task_id) is None:
            return None
        try:
            return await self.change_unended(task_id, lambda record, now: cancelled(record, now, reason))
        except OSError:
            if self.on_unsaved_cancel is not None:
                self.on_unsaved_cancel(task_id, reason)
            raise

    async def change_unended(self, task_id: str, transition: Transition) -> tuple[TaskRecord, bool] | None:
        """Change a stored task record with the function ``transition``, as `change` does. Return the record, and
        whether the task hadn't ended before.

        Returns `None` if there is no record.
        """
        was_final = False

        def step(record: TaskRecord, now: int) -> TaskRecord | None:
            nonlocal was_final
            was_final = record.phase.is_final
            return transition(record, now)

        record = await self.change(task_id, None, step)
        return None if record is None else (record, not was_final)

    def close(self) -> None:
        """Drop all callbacks, because the server's task host is ending."""
        self.on_change = self.on_hint = self.on_unsaved_cancel = None
        self.held_marks = dict

    # Waiting for changes

    def changed(self, task_id: str, record: TaskRecord | None = None) -> None:
        """Wake the code in this process that waits for a change of the task. Synchronous.

        ``record`` is the new record; `None` if this process hasn't read it.
        """
        for tell in tuple(self._observers.get(task_id, ())):
            tell(task_id)
        if self.on_change is not None:
            self.on_change(task_id, record)

    def observe(self, task_id: str, callback: Callable[[str], None]) -> None:
        """Call ``callback`` with the task id after each change of the task. Sometimes ``callback`` is called without a
        change."""
        self._observers.setdefault(task_id, set()).add(callback)

    def unobserve(self, task_id: str, callback: Callable[[str], None]) -> None:
        """Stop calling ``callback``, which was passed to `observe`."""
        observers = self._observers[task_id]
        observers.discard(callback)
        if not observers:
            del self._observers[task_id]
            self._ends.pop(task_id, None)

    async def poll(self) -> None:
        """Poll the store for changes of the observed tasks' records, until cancelled.

        Change notifications may be lost, and there is none for the end of a time to live. One request to the store
        checks all tasks.
        """
        seen: dict[str, bytes | None] = {}
        while True:
            with trio.move_on_after(self.settings.look_interval):
                await self._hints_lost.wait()
                self._hints_lost = trio.Event()
            held = self.held_marks()
            asked = dict.fromkeys((*self._observers, *held))
            if not asked:
                continue
            with suppress(Exception):  # already logged
                marks = await self.store.marks(tuple(asked))
                now, before, seen = self.now, seen, {}
                for task_id in tuple(self._observers):
                    seen[task_id] = marks.get(task_id)
                    is_known = task_id in before and before[task_id] == seen[task_id]
                    if not is_known or self._ends.get(task_id, now + 1) <= now:
                        self.changed(task_id)
                for task_id, mark in held.items():
                    if marks.get(task_id) != mark and task_id not in seen:
                        self.changed(task_id)

    @contextmanager
    def change_signal(self, task_id: str) -> Generator[ChangeSignal]:
        """Yield an object whose method `next_poll` waits until the task may have changed. Then read its record
        again."""
        watch = ChangeSignal(self.settings.look_interval)
        self.observe(task_id, watch.notify)
        try:
            yield watch
        finally:
            self.unobserve(task_id, watch.notify)

    async def watch(self) -> None:
        """Receive the store's change notifications, and wake the code that waits for them, until cancelled. If the
        store fails, try again."""
        has_failed = False
        while True:
            try:
                async with self.store.watch() as hints:
                    has_failed = False
                    async for hint in hints:
                        if isinstance(hint, HintsLost):
                            self._hints_lost.set()
                        else:
                            for tell in tuple(self._observers.get(hint, ())):
                                tell(hint)
                            if self.on_hint is not None:
                                self.on_hint(hint)
            except Exception as error:
                if not has_failed:
                    words = "the task store cannot be watched; trying again every %g s: %r"
                    logger.log(logging.ERROR, words, _RETRY, error, exc_info=not isinstance(error, OSError))
                has_failed = True
            await trio.sleep(_RETRY)
            self._hints_lost.set()


def _position(cursor: str) -> TaskCursor:
    place, dot, task_id = cursor.partition(".")
    if not (dot and place.isascii() and place.isdigit() and len(place) <= _LONGEST_PLACE):
        raise CodedError(INVALID_PARAMS, "Invalid params: unknown cursor")
    return int(place), task_id


def expired(record: TaskRecord, now: int) -> TaskRecord | None:
    """Return the record of a background task whose time to live is over."""
    return with_outcome(record, now, failure(TASK_LOST, EXPIRED), EXPIRED)
