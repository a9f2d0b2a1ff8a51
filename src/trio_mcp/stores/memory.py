"""Stores in the memory of this process: `MemoryTaskStore` for task records, and `MemorySessionDirectory` for legacy
sessions or the state of callers. `Expiring` is a mapping whose entries expire.
"""

from __future__ import annotations

import heapq
import time
from bisect import bisect_right, insort
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Final, Generic, TypeVar

import attrs
import trio

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.fair_share import leaves_enough
from .shared import StoredSession, WatchedByHints
from .task_store import Hint, HintQueues, StoredTask, StoreFull, TaskCursor, TaskRecord, created_record

K = TypeVar("K", str, bytes)
V = TypeVar("V")

_FEW: Final = 64


class TrioClock:
    """A clock that returns milliseconds since the epoch.

    It begins with the time of day and then follows trio's clock. It doesn't go back if trio is run again.
    """

    def __init__(self) -> None:
        self._clock: trio.abc.Clock | None = None
        self._ahead = 0.0
        self._last = 0.0

    def __call__(self) -> int:
        clock = trio.lowlevel.current_clock()
        now = clock.current_time()
        if clock is not self._clock:
            self._clock = clock
            self._ahead = max(time.time(), self._last) - now
        self._last = now + self._ahead
        return int(self._last * 1000)


class Expiring(Generic[K, V]):
    """A mapping in which each entry expires at its own time. The function ``now`` returns the current time in
    milliseconds."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._entries: dict[K, tuple[int, V]] = {}
        self._ends: list[tuple[int, K]] = []
        """Heap of the entries' expiry times. Times of removed entries, and earlier times of extended entries, are
        skipped."""

    def __len__(self) -> int:
        self._drop_past()
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of ``key``; `None` if ``key`` has no entry, or the entry has expired."""
        self._drop_past()
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def put(self, key: K, value: V, length: int) -> None:
        """Set the value of ``key``. The entry expires after ``length`` milliseconds."""
        self._drop_past()
        until = self._now() + length
        self._entries[key] = until, value
        heapq.heappush(self._ends, (until, key))
        if len(self._ends) > 2 * len(self._entries) + _FEW:
            self._ends = [(until, key) for key, (until, _) in self._entries.items()]
            heapq.heapify(self._ends)

    def pop(self, key: K) -> V | None:
        """Remove the entry of ``key`` and return its value. If ``key`` has no entry, or the entry has expired, return
        `None`."""
        self._drop_past()
        return self._drop(key) if key in self._entries else None

    def _drop(self, key: K) -> V:
        """Remove the entry of ``key``, which must exist, and return its value. Subclasses extend this method."""
        return self._entries.pop(key)[1]

    def _drop_past(self) -> None:
        now = self._now()
        while self._ends and self._ends[0][0] <= now:
            until, key = heapq.heappop(self._ends)
            entry = self._entries.get(key)
            if entry is not None and entry[0] == until:
                self._drop(key)


class MemoryTaskStore:
    """A `TaskStore` in the memory of one process. The records are lost when the process ends.

    Times follow trio's clock. The methods never wait.
    """

    def __init__(self) -> None:
        self._records: dict[str, TaskRecord] = {}
        self._open: dict[str, None] = {}
        """Ids of the tasks that can be claimed once their leases have expired. Tasks without a holder are in the order
        in which they were created or given up."""
        self._leases: dict[str, int] = {}
        """Ends of renewed leases that aren't in the records yet. Renewals are frequent, so they don't replace the
        record."""
        self._order: dict[str, list[TaskCursor]] = {}
        """Positions of the task records of each scope, sorted."""
        self._expiry: list[tuple[int, str]] = []
        """Heap of the times until which task records are kept. Entries of deleted records, or with an outdated time,
        are skipped."""
        self._discarded: dict[str, int] = {}
        """Ids that no new task record may have, each with the time until which it is blocked."""
        self._hint_queues = HintQueues[str]()
        self._now = TrioClock()

    def __len__(self) -> int:
        return len(self._records)

    async def create(
        self, new: TaskRecord, *, lease_ms: int, ttl_ms: int | None, retention_ms: int, limit: int, scope_limit: int
    ) -> TaskRecord:
        """Store a new task record. See `TaskStore.create`."""
        now, order = self._now(), self._order.get(new.scope, [])
        if len(self._records) >= limit or len(order) >= scope_limit:
            raise StoreFull
        if new.id in self._records or self._discarded.get(new.id, now) > now:
            raise ValueError("a task record with this id already exists, or discard() was called with this id before")
        record = created_record(
            new, now, order[-1][0] if order else 0, lease_ms=lease_ms, ttl_ms=ttl_ms, retention_ms=retention_ms
        )
        self._put(record)
        insort(order, (record.position, record.id))
        self._order[record.scope] = order
        self._schedule_expiry(record)
        self._hint_queues.notify([record.id])
        return record

    def _put(self, record: TaskRecord) -> None:
        self._records[record.id] = record
        if record.is_open:
            self._open[record.id] = None
        else:
            self._open.pop(record.id, None)

    def _schedule_expiry(self, record: TaskRecord) -> None:
        if record.kept_until is not None:
            heapq.heappush(self._expiry, (record.kept_until, record.id))
        if len(self._expiry) > 2 * len(self._records) + _FEW:
            self._expiry = [
                (each.kept_until, each.id) for each in self._records.values() if each.kept_until is not None
            ]
            heapq.heapify(self._expiry)

    def _find(self, task_id: str) -> TaskRecord | None:
        """Return the stored record of a task, with its current lease. If the task has no record, return `None`."""
        record, leased_until = self._records.get(task_id), self._leases.pop(task_id, None)
        if record is not None and leased_until is not None:
            record = self._records[task_id] = attrs.evolve(record, leased_until=leased_until)
        return record

    async def discard(self, task_id: str, *, retention_ms: int) -> bool:
        """Delete a task record, or prevent the creation of a record that doesn't exist yet. See `TaskStore.discard`."""
        record, now = self._records.get(task_id), self._now()
        if record is None:
            self._discarded = {each: until for each, until in self._discarded.items() if until > now}
            self._discarded[task_id] = now + retention_ms
            return False
        self._delete(record)
        return True

    async def read(self, scope: str | None, task_id: str) -> StoredTask | None:
        """Return the record of a task; `None` if it doesn't exist. See `TaskStore.read`."""
        record = self._find(task_id)
        return StoredTask(record, self._now()) if record is not None and scope in (None, record.scope) else None

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        """Return the mark of each task record: random bytes that identify its current version. See
        `TaskStore.marks`."""
        records = self._records
        return {task_id: records[task_id].mark for task_id in task_ids if task_id in records}

    async def change(
        self, record: TaskRecord, *, expected_mark: bytes, holder: str | None, give_up: bool = False
    ) -> bool:
        """Replace a stored task record with ``record``, its next version. See `TaskStore.change`."""
        kept = self._find(record.id)
        if kept is None or kept.mark != expected_mark or (holder is not None and kept.holder != holder):
            return False
        lets_go = give_up or not record.is_open
        if give_up:
            # Remove the task first: `_put` then adds it at the end, behind tasks that have waited longer.
            self._open.pop(record.id, None)
        self._put(
            attrs.evolve(
                record,
                holder=None if lets_go else kept.holder,
                epoch=kept.epoch,
                leased_until=0 if lets_go else kept.leased_until,
            )
        )
        if record.kept_until != kept.kept_until:
            self._schedule_expiry(record)
        self._hint_queues.notify([record.id])
        return True

    async def page(self, scope: str, cursor: TaskCursor | None, limit: int) -> Sequence[TaskRecord]:
        """Return some task records of ``scope`` (the owner's scope), in order of creation. See `TaskStore.page`."""
        order, now, page = self._order.get(scope, []), self._now(), list[TaskRecord]()
        start = 0 if cursor is None else bisect_right(order, cursor)
        while len(page) < limit and start < len(order):
            record = self._find(order[start][1])
            if record is not None and (record.kept_until is None or record.kept_until >= now):
                page.append(record)
            start += 1
        return page

    async def claim(self, holder: str, *, lease_ms: int, limit: int, names: Collection[str]) -> Sequence[TaskRecord]:
        """Claim unfinished tasks that have no lease, or whose lease has expired. See `TaskStore.claim`."""
        now, free = self._now(), list[tuple[int, str]]()
        for task_id in self._open:
            record = self._records[task_id]
            leased_until = self._leases.get(task_id, record.leased_until)
            if leased_until < now and record.name in names:
                free.append((leased_until, task_id))
        claimed = list[TaskRecord]()
        for _, task_id in heapq.nsmallest(limit, free, key=lambda each: each[0]):
            record = self._records[task_id]
            self._leases.pop(task_id, None)
            self._records[task_id] = attrs.evolve(
                record,
                holder=holder,
                leased_until=now + lease_ms,
                epoch=record.epoch + 1,
                version=record.version + 1,
                mark=holder.encode(),
            )
            claimed.append(self._records[task_id])
        self._hint_queues.notify(record.id for record in claimed)
        return claimed

    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
        """Extend the leases of tasks that one process runs. See `TaskStore.renew`."""
        lost, until = set[str](), self._now() + lease_ms
        for task_id, holder in held.items():
            record = self._records.get(task_id)
            if record is None or record.holder != holder:
                lost.add(task_id)
            else:
                self._leases[task_id] = until
        return lost

    async def expire(self, *, limit: int) -> int:
        """Delete expired task records. See `TaskStore.expire`."""
        now, deleted = self._now(), 0
        while deleted < limit and self._expiry and self._expiry[0][0] < now:
            until, task_id = heapq.heappop(self._expiry)
            record = self._records.get(task_id)
            if record is not None and record.kept_until == until:
                self._delete(record)
                deleted += 1
        return deleted

    def _delete(self, record: TaskRecord) -> None:
        del self._records[record.id]
        self._open.pop(record.id, None)
        self._leases.pop(record.id, None)
        order = self._order[record.scope]
        del order[bisect_right(order, (record.position, record.id)) - 1]
        if not order:
            del self._order[record.scope]
        self._hint_queues.notify([record.id])

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Open a stream of the ids of tasks that change from now on. See `TaskStore.watch`."""
        with self._hint_queues.watch() as hints:
            yield hints


@frozen
class _MemorySession:
    stored: StoredSession
    caller: bytes
    until: int = 0
    is_used: bool = False


class _SessionsByCaller(Expiring[str, _MemorySession]):
    """A mapping from ids to legacy sessions, which can also be looked up by caller."""

    def __init__(self, now: Callable[[], int]) -> None:
        super().__init__(now)
        self.held: dict[bytes, dict[str, _MemorySession]] = {}
        """The sessions of each caller that has any sessions."""

    def put(self, key: str, value: _MemorySession, length: int) -> None:
        value = attrs.evolve(value, until=self._now() + length)
        super().put(key, value, length)
        self.held.setdefault(value.caller, {})[key] = value

    def _drop(self, key: str) -> _MemorySession:
        session = super()._drop(key)
        held = self.held[session.caller]
        del held[key]
        if not held:
            del self.held[session.caller]
        return session


class MemorySessionDirectory(WatchedByHints[str]):
    """Stores legacy sessions (MCP 2025-11-25 or earlier) in the memory of one process. See `SessionDirectory`."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._sessions = _SessionsByCaller(now)
        super().__init__(HintQueues[str]())

    async def open(
        self, session_id: str, state: bytes, *, caller: bytes, mark: bytes, idle_ms: int, limit: int
    ) -> str | None:
        if self._sessions.get(session_id) is not None:
            raise ValueError("a session with this id already exists")
        count, ended = len(self._sessions), None
        if not leaves_enough(len(self._sessions.held.get(caller, ())), limit - count):
            ended = self._session_to_evict(caller) if count <= limit else None
            if ended is None:
                raise StoreFull
            await self.delete(ended)
        self._sessions.put(session_id, _MemorySession(StoredSession(state, mark), caller), idle_ms)
        return ended

    def _session_to_evict(self, caller: bytes) -> str | None:
        """Return the id of the session to delete, so that ``caller`` can open a new session. See
        `SessionDirectory.open`."""
        biggest = max(self._sessions.held.values(), key=len, default=dict[str, _MemorySession]())
        if caller in self._sessions.held or len(biggest) < 2:
            held = [self._sessions.held[caller]] if caller in self._sessions.held else self._sessions.held.values()
            found = {name: each for sessions in held for name, each in sessions.items() if not each.is_used}
        else:
            found = biggest
        return min(found, key=lambda name: (found[name].is_used, found[name].until), default=None)

    async def read(self, session_id: str, *, idle_ms: int) -> StoredSession | None:
        session = self._sessions.get(session_id)
        if session is None:
            return None
        self._sessions.put(session_id, attrs.evolve(session, is_used=True), idle_ms)
        return session.stored

    async def exists(self, session_id: str) -> bool:
        return self._sessions.get(session_id) is not None

    async def change(self, session_id: str, state: bytes, *, expected_mark: bytes, mark: bytes, idle_ms: int) -> bool:
        session = self._sessions.get(session_id)
        if session is None or session.stored.mark != expected_mark:
            return False
        self._sessions.put(session_id, attrs.evolve(session, stored=StoredSession(state, mark), is_used=True), idle_ms)
        self._hint_queues.notify([session_id])
        return True

    async def delete(self, session_id: str) -> bool:
        if self._sessions.pop(session_id) is None:
            return False
        self._hint_queues.notify([session_id])
        return True
