"""TaskRecords is the door to the records of tasks: for reading, for changing, and for waiting for a change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

import attrs
import trio

from ..classes import frozen
from ..concurrency.contexts import contextmanager
from ..concurrency.wakeups import ChangeSignal
from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..runtime.limits import Load
from ..stores.memory import MemoryTaskStore
from ..stores.task_store import HintsLost, LoggedStore, StoreFull, TaskCursor, TaskRecord, Uncertain, new_mark
from .record_views import EXPIRED, TASK_LOST, failure
from .settings import TaskSettings
from .transitions import answered, cancelled, with_outcome

logger = logging.getLogger("trio_mcp")

Transition: TypeAlias = Callable[[TaskRecord, int], TaskRecord | None]
"""Function from a record and the time to the next record; `None`: nothing changes."""

_RETRY: Final = 1.0
_AGAIN: Final = 0.5
_SWEEP: Final = 10.0
"""Seconds between two deletions of old records."""
_MOST_DELETED: Final = 1000
"""Records that are deleted at a time."""
_TRIES: Final = 3
"""Tries of a write that may have been kept."""
_LONGEST_PLACE: Final = 18


@frozen
class RecordPage:
    """A page of records. ``next_cursor`` leads to the next page; `None` at the end."""

    records: Sequence[TaskRecord]
    next_cursor: str | None


class TaskRecords:
    """The records in the store of ``settings``.

    Callers name the ``scope`` of a task: the principal, or nothing where the transport knows no principal.
    Records are read from the store each time, since other processes may change them. Any method raises `OSError` when
    the store fails, which the log has been told then.
    """

    def __init__(self, settings: TaskSettings, load: Load | None = None) -> None:
        self.settings = settings
        self.load = load or Load()
        """The counts of the server."""
        self.store = LoggedStore(MemoryTaskStore() if settings.store is None else settings.store)
        self._observers: dict[str, set[Callable[[str], None]]] = {}
        self._ends: dict[str, int] = {}
        """Ends of the times to live of tasks that are observed."""
        self.on_change: Callable[[str, TaskRecord | None], None] | None = None
        """Function that is told the ids of tasks that may have changed, with the record where this process knows it."""
        self.on_hint: Callable[[str], None] | None = None
        """Function that is told the ids for which the store gives hints, also after each write of this process."""
        self.held_marks: Callable[[], Mapping[str, bytes]] = dict
        """Function that returns the ids and marks of records that are watched besides."""
        self.on_unsaved_cancel: Callable[[str, str | None], None] | None = None
        """Function that is told the id and the reason where a cancel cannot be written."""
        self._clock_offset: float | None = None
        """Milliseconds that the clock of the store is ahead of trio's; `None` until the store has told."""
        self._hints_lost = trio.Event()

    @property
    def now(self) -> int:
        """The present of the store, in milliseconds since the epoch, as far as its last answer tells."""
        return int(trio.current_time() * 1000 + (self._clock_offset or 0.0))

    async def read(self, scope: str | None, task_id: str) -> TaskRecord | None:
        """Return the record; `None` where there is none for ``scope``, or the record need be kept no longer."""
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
            return await self.change(task_id, None, _expired)  # nobody runs the task, so nobody else says so
        return record

    async def page(self, scope: str, cursor: str | None, limit: int) -> RecordPage:
        """Return a page of the records of ``scope``, oldest first. ``cursor``: the one of the page before, which stays
        good when its records are gone. Raises `CodedError` (-32602) for a text that is no cursor."""
        found = await self.store.page(scope, None if cursor is None else _position(cursor), limit + 1)
        page, records = found[:limit], list[TaskRecord]()
        for record in page:
            is_old = record.expires_at is not None and (self._clock_offset is None or record.expires_at <= self.now)
            now = await self.read(scope, record.id) if is_old and record.outcome is None else record
            if now is not None:
                records.append(now)
        is_last = len(found) <= limit or not page
        return RecordPage(records, None if is_last else f"{page[-1].position}.{page[-1].id}")

    # Changes

    async def create(self, new: TaskRecord, ttl_ms: int | None) -> TaskRecord:
        """Keep a new record, within the bounds of the settings, and return the record. See `TaskStore.create`."""
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
        """Delete a record that nobody has learned of, or see that no such record is kept later; try again as long as
        the store fails."""
        keep = int((self.settings.retention + self.settings.lease) * 1000)
        while True:
            with suppress(Exception):  # the log was told
                await self.store.discard(task_id, retention_ms=keep)
                return
            await trio.sleep(_AGAIN)

    async def delete_expired(self) -> None:
        """Delete the records that need be kept no longer, from time to time, until cancelled."""
        while True:
            await trio.sleep(_SWEEP)
            with suppress(Exception):  # the log was told
                while await self.store.expire(limit=_MOST_DELETED) == _MOST_DELETED:
                    pass

    async def change(self, task_id: str, holder: str | None, transition: Transition) -> TaskRecord | None:
        """Carry out ``transition`` on the kept record, and return the record that is kept then; `None` where there is
        none (any more), or, where a ``holder`` is given, the task has not ended and another one has it. A transition
        that changes nothing leaves the record alone. Atomic under cancellation.

        Raises `Uncertain` where the store has told several times that nobody knows the kept record.
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

    async def change_with_retries(
        self,
        task_id: str,
        holder: Callable[[], str | None],
        transition: Transition,
        reacquire: Callable[[TaskRecord], bool],
    ) -> TaskRecord | None:
        """Do as `change`, and try again as long as the store fails. ``holder``: function that returns the holder.
        ``reacquire``: function that goes on under another holder of the same process, which the record has, and returns
        whether it does."""
        has_failed = False
        while True:
            ours = holder()
            try:
                record = await self.change(task_id, ours, transition)
            except OSError:  # the log was told
                await trio.sleep(_AGAIN)
            except Exception as error:  # a bug in the store must not lose results either
                if not has_failed:
                    words = "a change of task %s cannot be kept; trying again every %g s: %r"
                    # Log the traceback of a failing store once for all waiting tasks.
                    logger.log(logging.ERROR, words, task_id, _AGAIN, error, exc_info=not self.store.failing_methods)
                has_failed = True
                await trio.sleep(_AGAIN)
            else:
                if record is not None:
                    return record
                if ours == holder() and not await self._reacquire_kept(task_id, reacquire) and ours == holder():
                    return None  # otherwise our own claim was answered meanwhile

    async def _reacquire_kept(self, task_id: str, reacquire: Callable[[TaskRecord], bool]) -> bool:
        """Give ``reacquire`` the record that is kept. Return false where another process has the task, or where there
        is none."""
        with suppress(OSError):  # the log was told
            kept = await self.store.read(None, task_id)
            return kept is not None and reacquire(kept.record)
        return True  # nobody can say: the change, which waits for the store, will

    async def answer(self, scope: str, task_id: str, answers: Mapping[str, bytes]) -> TaskRecord | None:
        """Add answers to questions of a task, and return its record; `None` where there is none for ``scope``. Answers
        to anything else than a question without an answer are ignored. Raises `CodedError` (-32602) for answers that
        are too long to be kept."""
        if await self.read(scope, task_id) is None:
            return None
        if sum(map(len, answers.values())) > (most := self.settings.max_record_bytes):
            raise CodedError(
                INVALID_PARAMS, f"Invalid params: the answers have more than the {most} bytes that are kept"
            )
        return await self.add_answers(task_id, answers)

    async def add_answers(self, task_id: str, answers: Mapping[str, bytes]) -> TaskRecord | None:
        """Add answers of somebody who was asked for the task: see `answer`."""
        return await self.change(task_id, None, lambda record, now: answered(record, now, answers))

    async def cancel(self, scope: str, task_id: str, reason: str | None) -> tuple[TaskRecord, bool] | None:
        """Cancel a task, and return its record, and whether this call has cancelled the task; `None` where there is no
        record for ``scope``. A task that has ended does not change. Where the record cannot be written, a handler that
        runs here is cancelled all the same before `OSError` is raised, and the record says so once the store works."""
        if await self.read(scope, task_id) is None:
            return None
        is_first = False

        def cancel(record: TaskRecord, now: int) -> TaskRecord | None:
            nonlocal is_first
            following = cancelled(record, now, reason)
            is_first = following is not None
            return following

        try:
            record = await self.change(task_id, None, cancel)
        except OSError:
            if self.on_unsaved_cancel is not None:
                self.on_unsaved_cancel(task_id, reason)
            raise
        return None if record is None else (record, is_first)

    def close(self) -> None:
        """Drop the functions that tell others: tasks end here."""
        self.on_change = self.on_hint = self.on_unsaved_cancel = None
        self.held_marks = dict

    # Waiting for changes

    def changed(self, task_id: str, record: TaskRecord | None = None) -> None:
        """Wake the readers that wait for a change of a task, which may have come; to ``record``, where it is known.
        Synchronous."""
        for tell in tuple(self._observers.get(task_id, ())):
            tell(task_id)
        if self.on_change is not None:
            self.on_change(task_id, record)

    def observe(self, task_id: str, callback: Callable[[str], None]) -> None:
        """Have ``callback`` called with the id after each change of the task, and perhaps without a change."""
        self._observers.setdefault(task_id, set()).add(callback)

    def unobserve(self, task_id: str, callback: Callable[[str], None]) -> None:
        """End `observe`."""
        observers = self._observers[task_id]
        observers.discard(callback)
        if not observers:
            del self._observers[task_id]
            self._ends.pop(task_id, None)

    async def poll(self) -> None:
        """Look from time to time whether a task has changed that somebody observes, since hints may be lost, and nobody
        tells the end of a time to live; until cancelled. One question to the store is enough for all."""
        seen: dict[str, bytes | None] = {}
        while True:
            with trio.move_on_after(self.settings.look_interval):
                await self._hints_lost.wait()
                self._hints_lost = trio.Event()
            held = self.held_marks()
            asked = dict.fromkeys((*self._observers, *held))
            if not asked:
                continue
            with suppress(Exception):  # the log was told
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
        """Give the `ChangeSignal` of a reader of one task, who reads again after each `ChangeSignal.next_poll`."""
        watch = ChangeSignal(self.settings.look_interval)
        self.observe(task_id, watch.notify)
        try:
            yield watch
        finally:
            self.unobserve(task_id, watch.notify)

    async def watch(self) -> None:
        """Pass the hints of the store on, until cancelled. A store that fails is watched again after a while."""
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
                    words = "the store of tasks cannot be watched; trying again every %g s: %r"
                    logger.log(logging.ERROR, words, _RETRY, error, exc_info=not isinstance(error, OSError))
                has_failed = True
            await trio.sleep(_RETRY)
            self._hints_lost.set()


def _position(cursor: str) -> TaskCursor:
    place, dot, task_id = cursor.partition(".")
    if not (dot and place.isascii() and place.isdigit() and len(place) <= _LONGEST_PLACE):
        raise CodedError(INVALID_PARAMS, "Invalid params: unknown cursor")
    return int(place), task_id


def _expired(record: TaskRecord, now: int) -> TaskRecord | None:
    return with_outcome(record, now, failure(TASK_LOST, EXPIRED), EXPIRED)
