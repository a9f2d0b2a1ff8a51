"""A store of tasks that fails, or takes its time, as a test wishes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager

import trio

from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_record import TaskRecord
from trio_mcp.stores.task_store import Claim, TaskStore

__all__ = ["TouchyStore"]


class TouchyStore:
    """One process's way to ``store``. `fails` names the methods that fail; each takes ``slowness`` seconds, of which a
    cancel before the change is heeded."""

    def __init__(self, store: TaskStore | None = None, slowness: float = 0.0, failure: Exception | None = None) -> None:
        self.store = MemoryTaskStore() if store is None else store
        self.slowness = slowness
        self._failure = failure or OSError("the store fails")
        self.fails: set[str] = set()
        self.calls: list[str] = []

    def die(self) -> None:
        """Let nothing of this process get to the store from now on."""
        self.fails = {"create", "read", "change", "page", "claim", "renew", "expire"}

    async def _touch(self, method: str) -> None:
        self.calls.append(method)
        if self.slowness:
            await trio.sleep(self.slowness)
        if method in self.fails:
            raise self._failure

    async def create(self, record: TaskRecord, *, most: int, most_of_scope: int) -> None:
        await self._touch("create")
        await self.store.create(record, most=most, most_of_scope=most_of_scope)

    async def read(self, scope: str | None, task_id: str) -> TaskRecord | None:
        await self._touch("read")
        return await self.store.read(scope, task_id)

    async def change(self, record: TaskRecord) -> bool:
        await self._touch("change")
        return await self.store.change(record)

    async def page(self, scope: str, after: str | None, most: int) -> Sequence[TaskRecord]:
        await self._touch("page")
        return await self.store.page(scope, after, most)

    async def claim(self, claim: Claim) -> Sequence[TaskRecord]:
        await self._touch("claim")
        return await self.store.claim(claim)

    async def renew(self, owner: str, task_ids: Collection[str], leased_until: int) -> set[str]:
        await self._touch("renew")
        return await self.store.renew(owner, task_ids, leased_until)

    async def expire(self, now: int) -> int:
        await self._touch("expire")
        return await self.store.expire(now)

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        return self.store.watch()
