"""MemoryStorage: records that end with the process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from weakref import WeakValueDictionary

import trio

from ...concurrency.contexts import asynccontextmanager
from .stored import Storage, Stored


class MemoryStorage(Storage):
    """Records in memory, for a process that has a user sign in anew each time it is started."""

    def __init__(self) -> None:
        self._records: dict[str, Stored] = {}
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<MemoryStorage, {len(self._records)} records>"

    async def load(self, server_url: str) -> Stored | None:
        """Return the record: see `Storage.load`."""
        await trio.lowlevel.checkpoint()
        return self._records.get(server_url)

    async def save(self, server_url: str, stored: Stored) -> None:
        """Keep ``stored`` in place of the record there was: see `Storage.save`."""
        await trio.lowlevel.checkpoint()
        self._records[server_url] = stored

    async def remove(self, server_url: str) -> bool:
        """Forget the record: see `Storage.remove`."""
        await trio.lowlevel.checkpoint()
        return self._records.pop(server_url, None) is not None

    @asynccontextmanager
    async def lock(self, server_url: str) -> AsyncGenerator[None]:
        """Hold the record for this task alone: see `Storage.lock`."""
        lock = self._locks.setdefault(server_url, trio.Lock())
        async with lock:
            yield
