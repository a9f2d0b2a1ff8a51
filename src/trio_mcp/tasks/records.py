"""TaskRecords is the door to the records of tasks: for reading, for changing, and for waiting for a change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final, TypeAlias

import trio

from ..concurrency.contexts import contextmanager
from ..concurrency.watch import Watch
from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..stores.memory import MemoryTaskStore
from ..stores.task_record import TaskRecord
from ..stores.task_store import StoreFull
from .outcomes import EXPIRED, TASK_LOST, failure
from .settings import TaskSettings
from .transitions import answered, cancelled, ended

__all__ = ["TaskRecords", "Transition"]

logger = logging.getLogger("trio_mcp")

Transition: TypeAlias = Callable[[TaskRecord, int], TaskRecord | None]
"""Function from a record and the time to the next record; `None`: nothing changes."""

_RETRY: Final = 1.0
_AGAIN: Final = 0.5
_SWEEP: Final = 10.0
"""Seconds between two deletions of old records."""


class TaskRecords:
    """The records in the store of ``settings``.

    Callers name the ``scope`` of a task: the principal, or nothing where the transport knows no principal.
    Records are read from the store each time, since other processes may change them. Any method raises `OSError` when
    the store fails.
    """

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings
        self.store = MemoryTaskStore() if settings.store is None else settings.store
        self._observers: dict[str, set[Callable[[str], None]]] = {}
        self.on_change: Callable[[str], None] | None = None
        """Function that is told of the ids of tasks that may have changed."""

    @property
    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int(self.settings.now() * 1000)

    async def read(self, scope: str | None, task_id: str) -> TaskRecord | None:
        """Return the record; `None` where there is none for ``scope``, or the record need be kept no longer."""
        record = await self.store.read(scope, task_id)
        if record is None or (record.kept_until is not None and record.kept_until < self.now):
            return None
        if record.is_external and record.expires_at is not None and record.expires_at <= self.now:
            return await self.change(task_id, None, _expired)  # nobody runs the task, so nobody else says so
        return record

    async def page(self, scope: str, after: str | None, most: int) -> Sequence[TaskRecord]:
        """Return a page of the records of ``scope``. See `TaskStore.page`."""
        return await self.store.page(scope, after, most)

    # Changes

    async def create(self, record: TaskRecord) -> None:
        """Keep a new record, within the bounds of the settings. See `TaskStore.create`."""
        settings, create = self.settings, self.store.create
        try:
            await create(record, most=settings.max_kept, most_of_scope=settings.max_kept_of_caller)
        except StoreFull:
            if not await self.store.expire(self.now):
                raise
            await create(record, most=settings.max_kept, most_of_scope=settings.max_kept_of_caller)

    async def delete_expired(self) -> None:
        """Delete the records that need be kept no longer, from time to time, until cancelled."""
        while True:
            await trio.sleep(_SWEEP)
            try:
                await self.store.expire(self.now)
            except Exception:
                logger.exception("old records of tasks could not be deleted; trying again in %g s", _SWEEP)

    async def change(self, task_id: str, epoch: int | None, transition: Transition) -> TaskRecord | None:
        """Carry out ``transition`` on the kept record, and return the record that is kept then; `None` where there is
        none (any more), or, where ``epoch`` is given, another owner has the task. A transition that changes nothing
        leaves the record alone. Atomic under cancellation."""
        while True:
            record = await self.store.read(None, task_id)
            if record is None or (epoch is not None and record.epoch != epoch):
                return None
            following = transition(record, self.now)
            if following is None:
                return record
            if await self.store.change(following):
                self.changed(task_id)
                return following

    async def insist(self, task_id: str, epoch: int, transition: Transition) -> TaskRecord | None:
        """Do as `change`, and try again as long as the store fails."""
        has_failed = False
        while True:
            try:
                return await self.change(task_id, epoch, transition)
            except Exception as error:  # a defect of the store is no reason to lose anything, either
                if not has_failed:
                    error.__context__ = None  # a cancel, perhaps, which is long, and not the point
                    logger.exception("a change of task %s cannot be kept; trying again every %g s", task_id, _AGAIN)
                has_failed = True
            await trio.sleep(_AGAIN)

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
        return await self.take_answers(task_id, answers)

    async def take_answers(self, task_id: str, answers: Mapping[str, bytes]) -> TaskRecord | None:
        """Add answers of somebody who was asked for the task: see `answer`."""
        return await self.change(task_id, None, lambda record, now: answered(record, now, answers))

    async def cancel(self, scope: str, task_id: str, reason: str | None) -> tuple[TaskRecord, bool] | None:
        """Cancel a task, and return its record, and whether this call has cancelled the task; `None` where there is no
        record for ``scope``. A task that has ended does not change."""
        if await self.read(scope, task_id) is None:
            return None
        is_first = False

        def cancel(record: TaskRecord, now: int) -> TaskRecord | None:
            nonlocal is_first
            following = cancelled(record, now, reason)
            is_first = following is not None
            return following

        record = await self.change(task_id, None, cancel)
        return None if record is None else (record, is_first)

    # Waiting for changes

    def changed(self, task_id: str) -> None:
        """Wake the readers that wait for a change of a task, which may have come. Synchronous."""
        for tell in tuple(self._observers.get(task_id, ())):
            tell(task_id)
        if self.on_change is not None:
            self.on_change(task_id)

    def observe(self, task_id: str, tell: Callable[[str], None]) -> None:
        """Have ``tell`` called with the id after each change of the task, and perhaps without a change."""
        self._observers.setdefault(task_id, set()).add(tell)

    def leave_alone(self, task_id: str, tell: Callable[[str], None]) -> None:
        """End `observe`."""
        observers = self._observers[task_id]
        observers.discard(tell)
        if not observers:
            del self._observers[task_id]

    async def look_again(self) -> None:
        """Look from time to time whether a task has changed that somebody observes, since hints may be lost, and nobody
        tells the end of a time to live; until cancelled."""
        seen: dict[str, int | None] = {}
        while True:
            await trio.sleep(self.settings.look_interval)
            seen, before = {}, seen
            for task_id in tuple(self._observers):
                try:
                    record = await self.read(None, task_id)
                except Exception:
                    logger.exception("task %s could not be read", task_id)
                    break
                seen[task_id] = None if record is None else record.version
                if task_id not in before or before[task_id] != seen[task_id]:
                    self.changed(task_id)

    @contextmanager
    def watching(self, task_id: str) -> Generator[Watch]:
        """Give the `Watch` of a reader of one task, who reads again after each `Watch.next_look`."""
        watch = Watch(self.settings.look_interval)
        self.observe(task_id, watch.notice)
        try:
            yield watch
        finally:
            self.leave_alone(task_id, watch.notice)

    async def watch(self) -> None:
        """Pass the hints of the store on, until cancelled. A store that fails is watched again after a while."""
        has_failed = False
        while True:
            try:
                async with self.store.watch() as hints:
                    has_failed = False
                    async for task_id in hints:
                        self.changed(task_id)
            except Exception:
                if not has_failed:
                    logger.exception("the store of tasks cannot be watched; trying again every %g s", _RETRY)
                has_failed = True
            await trio.sleep(_RETRY)


def _expired(record: TaskRecord, now: int) -> TaskRecord | None:
    return ended(record, now, failure(TASK_LOST, EXPIRED), EXPIRED)
