"""Leases keeps the tasks that run here ours, and takes over tasks without a living owner."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from ..runtime.cancellation import CancelCause
from ..stores.task_store import Claim
from .restarts import request_of
from .transitions import released, taken_over

if TYPE_CHECKING:
    from ..stores.task_record import TaskRecord
    from .live_tasks import LiveTasks
    from .records import TaskRecords
    from .request_task import RequestTask

__all__ = ["Leases"]

logger = logging.getLogger("trio_mcp")

_BATCH: Final = 100
"""Tasks that are claimed at a time."""
_TRY_AGAIN: Final = 1.0
"""Seconds after which a renewal that failed is tried again."""
_MARGIN: Final = 10
"""The last part of a lease, in which nothing runs under the lease any more: one of so many."""

LOST: Final = "another process runs the task now"
NOT_RENEWED: Final = "the store of tasks could not be reached, and another process may run the task now"


class Leases:
    """The leases of the ``live`` tasks, which ``owner`` has.

    All are renewed together, several times in the length of a lease. A task that has another owner by now is cancelled
    at once, and so is one whose lease is about to run out because the store fails, by our own clock: its next owner
    cannot begin before. ``compare`` brings a task in line with its record; ``run_again`` runs a task that was claimed,
    and raises where its record cannot be read. ``ending``: set when nothing more is to be claimed.
    """

    def __init__(
        self,
        records: TaskRecords,
        live: LiveTasks,
        owner: str,
        ending: trio.Event,
        compare: Callable[[RequestTask, TaskRecord | None], None],
        run_again: Callable[[TaskRecord], None],
    ) -> None:
        settings = records.settings
        self._records = records
        self._settings = settings
        self._store = records.store
        self._live = live
        self._owner = owner
        self._ending = ending
        self._compare = compare
        self._run_again = run_again
        self._length = int(settings.lease * 1000)
        self._works = True
        """False while the store fails, so that each failure is told once."""
        self._interval = min(settings.lease / 3, settings.look_interval)

    async def run(self) -> None:
        """Renew, look and claim until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._guard)
            while True:
                works = await self._tend()
                await trio.sleep(self._interval if works else min(self._interval, _TRY_AGAIN))

    async def _tend(self) -> bool:
        try:
            await self._renew()
            await self._look()
            await self._claim()
        except Exception:  # of the store: the guard sees to the tasks where that lasts
            if self._works:
                logger.exception("the leases of tasks cannot be renewed; trying again every %g s", _TRY_AGAIN)
            self._works = False
        else:
            if not self._works:
                logger.warning("the leases of tasks are renewed again")
            self._works = True
        return self._works

    # Our own tasks

    async def _renew(self) -> None:
        tasks = {task.id: task for task in self._live if task.needs_lease}
        if not tasks:
            return
        until = self._records.now + self._length
        lost = await self._store.renew(self._owner, tuple(tasks), until)
        for task in tasks.values():
            if task.id not in lost:
                task.renewed(until)
        for task_id in lost:
            await self._read(tasks[task_id])

    async def _look(self) -> None:
        """Look for answers that other processes have taken, where the hints were lost."""
        for task in self._live:
            if task.is_asking:
                await self._read(task)

    async def _read(self, task: RequestTask) -> None:
        record = await self._store.read(None, task.id)
        if self._live.get(task.id) is task:
            self._compare(task, record)

    async def _guard(self) -> None:
        """Cancel each task just before its lease runs out."""
        margin = self._length // _MARGIN
        while True:
            now = self._records.now
            next_look = now + self._length
            given_up = 0
            for task in self._live:
                if not task.needs_lease:
                    continue
                if task.leased_until - margin <= now:
                    given_up += 1
                    task.end(CancelCause.LEASE, NOT_RENEWED)
                else:
                    next_look = min(next_look, task.leased_until - margin)
            if given_up:
                logger.error("%d tasks are given up here: %s", given_up, NOT_RENEWED)
            await trio.sleep(min(next_look - now, self._length / 3) / 1000)

    # Tasks of others

    async def _claim(self) -> None:
        """Take over as many tasks without a living owner as there is room for."""
        while not self._ending.is_set() and (most := min(self._live.room, _BATCH)):
            now = self._records.now
            claimed = await self._store.claim(Claim(self._owner, now, now + self._length, most))
            taken = 0
            for record in claimed:
                try:
                    taken += await self._take_over(record)
                except Exception:  # left alone: its lease runs out once more
                    logger.exception("task %s has lost its owner, and cannot be run again", record.id)
            if len(claimed) < most or not taken:
                return

    async def _take_over(self, record: TaskRecord) -> bool:
        if self._live.get(record.id) is not None:  # we gave it up, and its handler still cleans up
            await self._records.change(record.id, record.epoch, lambda kept, _: released(kept))
            return False
        if record.on_restart != "fail":
            request_of(record, self._records.now)  # a record that we cannot read is not for us to change
        most = self._settings.max_attempts
        kept = await self._records.change(record.id, record.epoch, lambda kept, now: taken_over(kept, now, most))
        if kept is None or kept.phase.is_final:
            return True
        if self._ending.is_set():
            await self._records.change(kept.id, kept.epoch, lambda record, _: released(record, counts=False))
            return False
        self._run_again(kept)
        return True
