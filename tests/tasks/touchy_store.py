"""A store of tasks that fails, or takes its time, as a test wishes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import trio

from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import Hint, StoreDown, StoredTask, TaskCursor, TaskRecord, TaskStore

__all__ = ["TouchyStore"]

ALL = frozenset(("create", "void", "read", "marks", "change", "page", "claim", "renew", "expire"))
WRITES = ALL - {"read", "marks", "page"}


class TouchyStore:
    """One process's way to ``store``. `fails` names the methods that fail; each takes ``slowness`` seconds, of which a
    cancel before the change is heeded. `loses` names the methods whose answers are lost: they do what they do, and
    fail."""

    def __init__(self, store: TaskStore | None = None, slowness: float = 0.0, failure: Exception | None = None) -> None:
        self.store = MemoryTaskStore() if store is None else store
        self.slowness = slowness
        self._failure = failure or StoreDown("the store fails")
        self.fails: set[str] = set()
        self.loses: dict[str, Exception] = {}
        self.calls: list[str] = []

    def die(self) -> None:
        """Let nothing of this process get to the store from now on."""
        self.fails = set(ALL)

    def fill_up(self) -> None:
        """Let nothing be written from now on."""
        self.fails = set(WRITES)

    async def _touch(self, method: str) -> None:
        self.calls.append(method)
        if self.slowness:
            await trio.sleep(self.slowness)
        if method in self.fails:
            raise self._failure

    def _lose(self, method: str) -> None:
        if method in self.loses:
            raise self.loses[method]

    async def create(
        self, new: TaskRecord, *, lease_ms: int, ttl_ms: int | None, retention_ms: int, limit: int, scope_limit: int
    ) -> TaskRecord:
        await self._touch("create")
        record = await self.store.create(
            new, lease_ms=lease_ms, ttl_ms=ttl_ms, retention_ms=retention_ms, limit=limit, scope_limit=scope_limit
        )
        self._lose("create")
        return record

    async def discard(self, task_id: str, *, retention_ms: int) -> bool:
        await self._touch("void")
        return await self.store.discard(task_id, retention_ms=retention_ms)

    async def read(self, scope: str | None, task_id: str) -> StoredTask | None:
        await self._touch("read")
        return await self.store.read(scope, task_id)

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        await self._touch("marks")
        return await self.store.marks(task_ids)

    async def change(
        self, record: TaskRecord, *, expected_mark: bytes, holder: str | None, give_up: bool = False
    ) -> bool:
        await self._touch("change")
        changed = await self.store.change(record, expected_mark=expected_mark, holder=holder, give_up=give_up)
        self._lose("change")
        return changed

    async def page(self, scope: str, cursor: TaskCursor | None, limit: int) -> Sequence[TaskRecord]:
        await self._touch("page")
        return await self.store.page(scope, cursor, limit)

    async def claim(self, holder: str, *, lease_ms: int, limit: int, names: Collection[str]) -> Sequence[TaskRecord]:
        await self._touch("claim")
        claimed = await self.store.claim(holder, lease_ms=lease_ms, limit=limit, names=names)
        self._lose("claim")
        return claimed

    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
        await self._touch("renew")
        return await self.store.renew(held, lease_ms=lease_ms)

    async def expire(self, *, limit: int) -> int:
        await self._touch("expire")
        return await self.store.expire(limit=limit)

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        return self.store.watch()


async def record_in(store: TaskStore, task_id: str) -> TaskRecord:
    """The record of a task, which is there."""
    kept = await store.read(None, task_id)
    assert kept is not None, f"{task_id} is not kept"
    return kept.record
