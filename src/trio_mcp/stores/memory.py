"""MemoryTaskStore keeps the records of tasks in this process."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from typing import Final

import attrs

from ..concurrency.contexts import asynccontextmanager
from .task_record import TaskRecord
from .task_store import Claim, StoreFull
from .watchers import Watchers

__all__ = ["MemoryTaskStore"]

_FEW: Final = 64


class MemoryTaskStore:
    """A `TaskStore` for one process: the records are gone with the process. No method waits."""

    def __init__(self) -> None:
        self._records: dict[str, TaskRecord] = {}
        self._open: dict[str, None] = {}
        """Ids of the tasks that may be claimed once their leases are over, in the order of their creation."""
        self._renewed: dict[str, int] = {}
        """Ends of leases that the records do not show yet, since renewals are many and make no other record."""
        self._order: dict[str, list[tuple[int, str]]] = {}
        """Creation time and id of the records of each scope, sorted."""
        self._expiry: list[tuple[int, str]] = []
        """Heap of the times until which records are kept. An entry of a record that is gone, or is kept for another
        time by now, is passed over."""
        self._watchers = Watchers()

    def __len__(self) -> int:
        return len(self._records)

    async def create(self, record: TaskRecord, *, most: int, most_of_scope: int) -> None:
        """Keep a new record. See `TaskStore.create`."""
        order = self._order.get(record.scope, [])
        if len(self._records) >= most or len(order) >= most_of_scope:
            raise StoreFull
        if record.id in self._records:
            raise ValueError("there is a record with this id")
        self._put(record)
        entry = (record.created_at, record.id)
        order.insert(bisect_right(order, entry), entry)
        self._order[record.scope] = order
        self._keep_until(record)
        self._watchers.tell([record.id])

    def _put(self, record: TaskRecord) -> None:
        self._records[record.id] = record
        if record.phase.is_final or record.is_external:
            self._open.pop(record.id, None)
        else:
            self._open[record.id] = None

    def _keep_until(self, record: TaskRecord) -> None:
        if record.kept_until is not None:
            heapq.heappush(self._expiry, (record.kept_until, record.id))
        if len(self._expiry) > 2 * len(self._records) + _FEW:
            self._expiry = [
                (each.kept_until, each.id) for each in self._records.values() if each.kept_until is not None
            ]
            heapq.heapify(self._expiry)

    def _find(self, task_id: str) -> TaskRecord | None:
        """Return the record, with its lease."""
        record, leased_until = self._records.get(task_id), self._renewed.pop(task_id, None)
        if record is not None and leased_until is not None:
            record = self._records[task_id] = attrs.evolve(record, leased_until=leased_until)
        return record

    async def read(self, scope: str | None, task_id: str) -> TaskRecord | None:
        """Return the record. See `TaskStore.read`."""
        record = self._find(task_id)
        return record if record is not None and scope in (None, record.scope) else None

    async def change(self, record: TaskRecord) -> bool:
        """Keep the next version of a record. See `TaskStore.change`."""
        kept = self._find(record.id)
        if kept is None or kept.version + 1 != record.version or kept.epoch != record.epoch:
            return False
        if record.owner is not None and record.leased_until != kept.leased_until:
            record = attrs.evolve(record, leased_until=kept.leased_until)
        self._put(record)
        if record.kept_until != kept.kept_until:
            self._keep_until(record)
        self._watchers.tell([record.id])
        return True

    async def page(self, scope: str, after: str | None, most: int) -> Sequence[TaskRecord]:
        """Return a page of the records of ``scope``. See `TaskStore.page`."""
        order = self._order.get(scope, [])
        start = 0
        if after is not None:
            before = await self.read(scope, after)
            if before is None:
                raise KeyError(after)
            start = bisect_right(order, (before.created_at, before.id))
        page = [self._find(task_id) for _, task_id in order[start : start + max(most, 0)]]
        return [record for record in page if record is not None]

    async def claim(self, claim: Claim) -> Sequence[TaskRecord]:
        """Give tasks without a living owner to another. See `TaskStore.claim`."""
        claimed: list[TaskRecord] = []
        for task_id in self._open:
            if len(claimed) >= claim.most:
                break
            record = self._records[task_id]
            if record.owner is None or self._renewed.get(record.id, record.leased_until) < claim.now:
                claimed.append(
                    attrs.evolve(
                        record,
                        owner=claim.owner,
                        leased_until=claim.leased_until,
                        epoch=record.epoch + 1,
                        version=record.version + 1,
                    )
                )
        for record in claimed:
            self._records[record.id] = record
            self._renewed.pop(record.id, None)
        self._watchers.tell(record.id for record in claimed)
        return claimed

    async def renew(self, owner: str, task_ids: Collection[str], leased_until: int) -> set[str]:
        """Lengthen the lease of tasks. See `TaskStore.renew`."""
        lost: set[str] = set()
        for task_id in task_ids:
            record = self._records.get(task_id)
            if record is None or record.owner != owner or record.phase.is_final:
                lost.add(task_id)
            else:
                self._renewed[task_id] = leased_until
        return lost

    async def expire(self, now: int) -> int:
        """Delete records that need be kept no longer. See `TaskStore.expire`."""
        deleted = 0
        while self._expiry and self._expiry[0][0] < now:
            until, task_id = heapq.heappop(self._expiry)
            record = self._records.get(task_id)
            if record is None or record.kept_until != until:
                continue
            del self._records[task_id]
            self._open.pop(task_id, None)
            self._renewed.pop(task_id, None)
            order = self._order[record.scope]
            del order[bisect_right(order, (record.created_at, task_id)) - 1]
            if not order:
                del self._order[record.scope]
            self._watchers.tell([task_id])
            deleted += 1
        return deleted

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[str]]:
        """Open a stream of hints. See `TaskStore.watch`."""
        with self._watchers.watch() as hints:
            yield hints
