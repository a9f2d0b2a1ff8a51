"""Leases: renews the leases of background tasks that run in this process, and takes over tasks whose process has
died."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from ..classes import define
from ..concurrency.wakeups import Sleeper
from ..runtime.cancellation import CancelCause
from ..stores.task_store import UnreadableRecord
from .request_task import RUNS_ELSEWHERE, new_holder
from .task_exchange import request_of
from .transitions import reclaimed, released

if TYPE_CHECKING:
    from ..stores.task_store import TaskRecord
    from .host import TaskHost
    from .request_task import RequestTask

logger = logging.getLogger("trio_mcp")

_BATCH: Final = 100
"""Maximum number of tasks that are claimed at once."""
_TRY_AGAIN: Final = 1.0
"""Seconds until a failed renewal of the leases is tried again."""
_RELEASE: Final = 2.0
"""Seconds allowed for releasing a claimed task that this process won't run."""
_PARTS: Final = 3
"""Number of renewals of a lease within its length."""
_MARGIN: Final = 10
"""Divisor of a lease's length. The result is the last part of the lease, in which nothing may run."""

NOT_RENEWED: Final = "the task store was unavailable, and another process may run the task now"


@define(eq=False)
class ClaimedLease:
    """The lease of a background task that this process has claimed, but whose handler isn't running yet.

    Leases of running tasks are renewed through the same two attributes of `RequestTask`.
    """

    holder: str | None
    held_until: float


class Leases:
    """Manages the leases of background tasks. A lease gives one process the right to run a task for a limited time.

    The tasks are those of ``host``: the tasks that run in this process, and the tasks that are about to run here.

    Three background tasks share the work:

    - The renewer renews all leases in one step, several times during the length of a lease.
    - The guard cancels each task whose lease is about to expire, before another process can claim it. The lease is
      counted by trio's clock from before the renewal was sent. First the guard waits for one more renewal: if this
      process was suspended, or its event loop was late, the lease may still be valid.
    - The claimer claims tasks of the tools that `TaskHost.offers` names, a limited number at once, and only while
      renewals work.

    A task runs once under each claim. If this process claims a task that already runs here, no new run starts: the
    existing run continues under the new claim. A task that has another holder is cancelled at once.
    """

    def __init__(self, host: TaskHost) -> None:
        settings = host.settings
        self._host = host
        self._records = host.records
        self._store = host.records.store
        self._live = host.live
        self._lease = settings.lease
        self._length = int(settings.lease * 1000)
        self._interval = settings.lease / _PARTS
        self._margin = settings.lease / _MARGIN
        self._pace = min(self._interval, settings.look_interval)
        """Seconds between two searches for abandoned tasks."""
        self._wanted = -math.inf
        """A task that is about to start waits for a renewal that begins at this time or later."""
        self._began = -math.inf
        """The time at which the last completed renewal began."""
        self._works = False
        """True if the last completed renewal succeeded."""
        self._renewer = Sleeper()
        self._looker = Sleeper()
        """Event that wakes `_guard`, for a task that starts with only a part of its lease left."""
        self._renewed = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Run until cancelled: renew leases, claim abandoned tasks, and cancel background tasks whose leases are about
        to expire."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._renew_always)
            nursery.start_soon(self._guard)
            nursery.start_soon(self._claim_always)

    # Our own tasks

    async def _renew_always(self) -> None:
        while True:
            await self._renew()
            pause = self._interval if self._works else min(self._interval, _TRY_AGAIN)
            # Measure the pause from the renewal's start, because under load a renewal may take as long as the pause.
            with trio.move_on_at(self._began + pause if self._wanted <= self._began else 0):
                await self._renewer.sleep()

    async def _renew(self) -> None:
        began, works = trio.current_time(), False
        with suppress(Exception):  # the error was already logged; if renewals keep failing, `_guard` cancels the tasks
            with trio.fail_after(self._lease):
                lost = await self._renew_held(began + self._lease)
                if await self._reacquire_claimed(lost):
                    lost = await self._renew_held(began + self._lease)
            works = True
            for task_id in lost:
                # Report a change, so that the `TaskHost` reads the task's record again.
                # If this process may no longer run the task, the `TaskHost` cancels it.
                self._records.changed(task_id)
        self._began, self._works = began, works
        self._renewed.unpark_all()

    async def _renew_held(self, until: float) -> Collection[str]:
        """Renew all leases of this process, and return the ids of the tasks whose leases are lost."""
        all_held = {**self._live.pending, **{task.id: task for task in self._live if task.needs_lease}}
        held = {task_id: each.holder for task_id, each in all_held.items() if each.holder is not None}
        lost = await self._store.renew(held, lease_ms=self._length) if held else ()
        for task_id, each in all_held.items():
            # Skip a task that this process has claimed anew during the renewal.
            # The renewed lease (the time for which the process may run the task) belongs to the earlier claim.
            if held.get(task_id) == each.holder and task_id not in lost:
                each.held_until = until
        return lost

    async def _reacquire_claimed(self, lost: Collection[str]) -> bool:
        """Continue tasks that lost their leases, but that this process itself has claimed again. ``lost`` has the ids
        of all tasks whose leases couldn't be renewed.

        The store's response to the new claim hasn't arrived yet, or has arrived during the renewal. Returns whether
        there are such tasks.
        """
        found = False
        for task_id in tuple(lost)[:_BATCH]:
            try:
                kept = await self._store.read(None, task_id)
            except UnreadableRecord:  # affects only this task
                continue
            task = self._live.find(task_id)
            if task is not None and kept is not None:
                found |= task.reacquire(kept.record) or (task.needs_lease and task.is_of(kept.record))
        return found

    async def _wait_for_renewal(self, since: float) -> None:
        """Wait until the leases were renewed by a renewal that began at or after the time ``since``."""
        if self._began >= since:
            await trio.lowlevel.checkpoint()
            return
        self._wanted = max(self._wanted, since)
        self._renewer.wake()
        while self._began < since:
            await self._renewed.park()

    async def _guard(self) -> None:
        """Cancel each background task in this process just before its lease (the time for which this process may run
        it) expires."""
        margin = self._margin
        while True:
            now = trio.current_time()
            if due := self._due(now + margin):
                end = min(task.held_until for task in due) - margin / 2
                # If the time ``end`` is in the past, this process was suspended or has run late.
                # In the store, the lease may still be valid, so try to renew it before the task is cancelled.
                end = end if now < end else now + self._lease / _PARTS
                with trio.move_on_at(end):
                    await self._wait_for_renewal(now)
                now = trio.current_time()
                if now > end + margin / 2:
                    # The process was suspended during the wait, or has run late.
                    # A renewal may have succeeded in the meantime, so check the leases again.
                    continue
                due = self._due(now + margin)
                for task in due:
                    task.cancel(CancelCause.LEASE, NOT_RENEWED)
                if due:
                    logger.error("%d tasks are cancelled here: %s", len(due), NOT_RENEWED)
            # The set `ends` is small, because this process renews its leases together, so that they end together.
            ends = {task.held_until for task in self._live if task.is_at_risk}
            pause = min([self._lease / _PARTS, *(end - margin - now for end in ends if end - margin > now)])
            with trio.move_on_after(pause):
                await self._looker.sleep()

    def _due(self, until: float) -> list[RequestTask]:
        return [task for task in self._live if task.is_at_risk and task.held_until <= until]

    # Tasks of others

    async def _claim_always(self) -> None:
        while True:
            # Before claiming other tasks, renew this process's own leases, which may have expired as well.
            await self._wait_for_renewal(trio.current_time() - 2 * self._interval)
            if not (self._works and await self._claim()):
                await trio.sleep(self._pace)

    async def _claim(self) -> bool:
        """Claim some abandoned tasks, and run them. Returns whether more abandoned tasks may exist."""
        most, names = min(self._live.room, _BATCH), self._host.offers()
        if self._host.ending.is_set() or not most or not names:
            return False
        until = trio.current_time() + self._lease
        try:
            holder = new_holder(self._host.process)
            claimed = await self._store.claim(holder, lease_ms=self._length, limit=most, names=names)
        except Exception:  # already logged
            return False
        taken = 0
        for record in claimed:
            try:
                taken += await self._take_over(record, until)
            except OSError as error:  # keep the claim: when its lease expires, a process claims the task again
                logger.warning("task %s could not be taken over: %s", record.id, error)
            except Exception:  # keep the claim: when its lease expires, a process claims the task again
                logger.exception("task %s has lost its process, and cannot be run again", record.id)
        return len(claimed) == most and taken > 0

    async def _take_over(self, record: TaskRecord, until: float) -> bool:
        holder, ours = record.holder, self._live.find(record.id)
        if ours is not None and record.epoch <= ours.epoch + 1:
            # The task is still running in this process: its lease had expired, but no other process has claimed it.
            ours.acquire(record, max(until, ours.held_until))
            # If this process had already given up the task, its handler is ending. So also give up the new claim.
            if record.attempt < ours.attempt:
                await self._release(record)
            return False
        if ours is not None:  # another process has run the task in the meantime, so this run can't continue
            ours.cancel(CancelCause.LEASE, RUNS_ELSEWHERE)
            await self._release(record)
            return False
        self._live.pending[record.id] = claimed = ClaimedLease(holder, until)
        try:
            return await self._run_claimed(record, claimed)
        finally:
            self._live.pending.pop(record.id, None)

    async def _run_claimed(self, record: TaskRecord, claimed: ClaimedLease) -> bool:
        """Run a claimed task that isn't running in this process yet. If the task can't run again, store that it has
        failed.

        Returns whether either was done.
        """
        host, change, holder = self._host, self._records.change, claimed.holder
        if not await self.has_lease_left(claimed) or host.ending.is_set() or record.name not in host.offers():
            await self._release(record)
            return False
        if record.on_restart != "fail":
            # If the request in the record can't be decoded, raise the error before the record is changed.
            request_of(record, self._records.now)
        attempt, most = record.attempt + 1, host.settings.max_attempts
        kept = await change(record.id, holder, lambda kept, now: reclaimed(kept, now, attempt, most))
        if kept is None:
            return True
        self._records.load.takeovers += 1
        if kept.phase.is_final:
            return True
        # Check again how long this process may run the task, because storing the new record may have taken long.
        if not await self.has_lease_left(claimed) or host.ending.is_set():
            await self._release(record, counts=False)
            return False
        host.run_again(kept, claimed.held_until)
        return True

    async def _release(self, record: TaskRecord, *, counts: bool = True) -> None:
        """Release a claimed task, so that another process can claim it before the lease ends. Also works during a
        shutdown."""
        with trio.move_on_after(_RELEASE, shield=True):
            await self._records.change(record.id, record.holder, lambda kept, _: released(kept, counts=counts))

    async def has_lease_left(self, held: ClaimedLease | RequestTask) -> bool:
        """Return whether the lease, the time for which this process may run the task, lasts long enough to start the
        task.

        If it is too short, wait for a renewal first. The result is valid until the next trio checkpoint.
        """
        until_looked = self._interval + self._margin
        for _ in range(_PARTS):
            if held.held_until - (now := trio.current_time()) >= until_looked + self._margin:
                break
            await self._wait_for_renewal(now)
        left = held.held_until - trio.current_time()
        if left < until_looked:  # wake `_guard`, which would otherwise sleep past the end of this lease
            self._looker.wake()
        return left >= 2 * self._margin
