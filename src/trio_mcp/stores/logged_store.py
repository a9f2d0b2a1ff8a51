"""LoggedStore tells the log that a store fails, and that the store works again, once each."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, TypeAlias, TypeVar

from .record_codec import UnreadableRecord
from .task_record import TaskRecord
from .task_store import Hint, Kept, Position, StoreFull, TaskStore

__all__ = ["LoggedStore"]

logger = logging.getLogger("trio_mcp")

T = TypeVar("T")

_Kind: TypeAlias = Literal["read", "written"]


class LoggedStore:
    """The ``store``, as one process sees the store. All errors are raised; an outage is one line in the log, for any
    number of calls: reading and writing count by themselves, since a full disk can be read."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._fails = set[_Kind]()

    async def _told(self, kind: _Kind, call: Awaitable[T]) -> T:
        try:
            result = await call
        except (StoreFull, ValueError, UnreadableRecord):
            raise  # about one record
        except Exception:
            if not self._fails:
                logger.exception("the store of tasks cannot be %s; what waits for it is tried again", kind)
            self._fails.add(kind)
            raise
        if kind in self._fails:
            self._fails.discard(kind)
            if not self._fails:
                logger.warning("the store of tasks works again")
        return result

    async def create(
        self, new: TaskRecord, *, lease: int, ttl: int | None, keep: int, most: int, most_of_scope: int
    ) -> TaskRecord:
        """See `TaskStore.create`."""
        call = self._store.create(new, lease=lease, ttl=ttl, keep=keep, most=most, most_of_scope=most_of_scope)
        return await self._told("written", call)

    async def void(self, task_id: str, *, keep: int) -> bool:
        """See `TaskStore.void`."""
        return await self._told("written", self._store.void(task_id, keep=keep))

    async def read(self, scope: str | None, task_id: str) -> Kept | None:
        """See `TaskStore.read`."""
        return await self._told("read", self._store.read(scope, task_id))

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        """See `TaskStore.marks`."""
        return await self._told("read", self._store.marks(task_ids))

    async def change(self, record: TaskRecord, *, was: bytes, holder: str | None, give_up: bool = False) -> bool:
        """See `TaskStore.change`."""
        return await self._told("written", self._store.change(record, was=was, holder=holder, give_up=give_up))

    async def page(self, scope: str, after: Position | None, most: int) -> Sequence[TaskRecord]:
        """See `TaskStore.page`."""
        return await self._told("read", self._store.page(scope, after, most))

    async def claim(self, holder: str, *, lease: int, most: int, names: Collection[str]) -> Sequence[TaskRecord]:
        """See `TaskStore.claim`."""
        return await self._told("written", self._store.claim(holder, lease=lease, most=most, names=names))

    async def renew(self, held: Mapping[str, str], *, lease: int) -> Collection[str]:
        """See `TaskStore.renew`."""
        return await self._told("written", self._store.renew(held, lease=lease))

    async def expire(self, *, most: int) -> int:
        """See `TaskStore.expire`."""
        return await self._told("written", self._store.expire(most=most))

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        """See `TaskStore.watch`."""
        return self._store.watch()
