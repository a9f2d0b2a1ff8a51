"""LoggedStore tells the log that a store fails, and that the store works again, once each."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

import trio

from .record_codec import UnreadableRecord
from .task_store import Hint, Kept, Position, StoreFull, TaskRecord, TaskStore

logger = logging.getLogger("trio_mcp")

T = TypeVar("T")

_MEMORY: Final = 30.0
"""Seconds after which a failed method is forgotten that is not called again."""


class LoggedStore:
    """The ``store``, as one process sees the store. All errors are raised; an outage is one line in the log, for any
    number of calls, and its end is another one. Each method counts by itself, since a full disk can be read; a method
    that has not been called for a while is forgotten."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._failed: dict[str, float] = {}
        """The methods that have failed last, and when."""

    async def _told(self, method: str, kind: str, call: Awaitable[T]) -> T:
        try:
            result = await call
        except (StoreFull, ValueError, UnreadableRecord):
            raise  # about one record
        except Exception:
            if not self._failed:
                logger.exception("the store of tasks cannot be %s; what waits for it is tried again", kind)
            self._failed[method] = trio.current_time()
            raise
        if self._failed:
            self._works(method)
        return result

    def _works(self, method: str) -> None:
        self._failed.pop(method, None)
        long_ago = trio.current_time() - _MEMORY
        self._failed = {each: when for each, when in self._failed.items() if when > long_ago}
        if not self._failed:
            logger.warning("the store of tasks works again")

    async def create(
        self, new: TaskRecord, *, lease: int, ttl: int | None, keep: int, most: int, most_of_scope: int
    ) -> TaskRecord:
        """See `TaskStore.create`."""
        call = self._store.create(new, lease=lease, ttl=ttl, keep=keep, most=most, most_of_scope=most_of_scope)
        return await self._told("create", "written", call)

    async def void(self, task_id: str, *, keep: int) -> bool:
        """See `TaskStore.void`."""
        return await self._told("void", "written", self._store.void(task_id, keep=keep))

    async def read(self, scope: str | None, task_id: str) -> Kept | None:
        """See `TaskStore.read`."""
        return await self._told("read", "read", self._store.read(scope, task_id))

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        """See `TaskStore.marks`."""
        return await self._told("marks", "read", self._store.marks(task_ids))

    async def change(self, record: TaskRecord, *, was: bytes, holder: str | None, give_up: bool = False) -> bool:
        """See `TaskStore.change`."""
        return await self._told(
            "change", "written", self._store.change(record, was=was, holder=holder, give_up=give_up)
        )

    async def page(self, scope: str, after: Position | None, most: int) -> Sequence[TaskRecord]:
        """See `TaskStore.page`."""
        return await self._told("page", "read", self._store.page(scope, after, most))

    async def claim(self, holder: str, *, lease: int, most: int, names: Collection[str]) -> Sequence[TaskRecord]:
        """See `TaskStore.claim`."""
        return await self._told("claim", "written", self._store.claim(holder, lease=lease, most=most, names=names))

    async def renew(self, held: Mapping[str, str], *, lease: int) -> Collection[str]:
        """See `TaskStore.renew`."""
        return await self._told("renew", "written", self._store.renew(held, lease=lease))

    async def expire(self, *, most: int) -> int:
        """See `TaskStore.expire`."""
        return await self._told("expire", "written", self._store.expire(most=most))

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        """See `TaskStore.watch`."""
        return self._store.watch()
