"""A store of tasks that fails, or takes its time, as a test wishes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import trio

from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import Hint, Kept, Position, StoreDown, TaskRecord, TaskStore

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
        self, new: TaskRecord, *, lease: int, ttl: int | None, keep: int, most: int, most_of_scope: int
    ) -> TaskRecord:
        await self._touch("create")
        record = await self.store.create(new, lease=lease, ttl=ttl, keep=keep, most=most, most_of_scope=most_of_scope)
        self._lose("create")
        return record

    async def void(self, task_id: str, *, keep: int) -> bool:
        await self._touch("void")
        return await self.store.void(task_id, keep=keep)

    async def read(self, scope: str | None, task_id: str) -> Kept | None:
        await self._touch("read")
        return await self.store.read(scope, task_id)

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        await self._touch("marks")
        return await self.store.marks(task_ids)

    async def change(self, record: TaskRecord, *, was: bytes, holder: str | None, give_up: bool = False) -> bool:
        await self._touch("change")
        changed = await self.store.change(record, was=was, holder=holder, give_up=give_up)
        self._lose("change")
        return changed

    async def page(self, scope: str, after: Position | None, most: int) -> Sequence[TaskRecord]:
        await self._touch("page")
        return await self.store.page(scope, after, most)

    async def claim(self, holder: str, *, lease: int, most: int, names: Collection[str]) -> Sequence[TaskRecord]:
        await self._touch("claim")
        claimed = await self.store.claim(holder, lease=lease, most=most, names=names)
        self._lose("claim")
        return claimed

    async def renew(self, held: Mapping[str, str], *, lease: int) -> Collection[str]:
        await self._touch("renew")
        return await self.store.renew(held, lease=lease)

    async def expire(self, *, most: int) -> int:
        await self._touch("expire")
        return await self.store.expire(most=most)

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        return self.store.watch()


async def record_in(store: TaskStore, task_id: str) -> TaskRecord:
    """The record of a task, which is there."""
    kept = await store.read(None, task_id)
    assert kept is not None, f"{task_id} is not kept"
    return kept.record
