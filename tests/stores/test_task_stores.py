"""Both task stores pass the test suite for task stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.sqlite_store import SQLiteTaskStore
from trio_mcp.stores.task_store import TaskStore
from trio_mcp.testing.stores.task_store import TaskStoreSuite

SECRET, OLDER = bytes(range(32)), bytes(range(32, 64))


class TestMemoryTaskStore(TaskStoreSuite):
    @pytest.fixture(autouse=True)
    def storage(self) -> None:
        self.store = MemoryTaskStore()

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[TaskStore]:
        yield self.store


class TestSQLiteTaskStore(TaskStoreSuite):
    secrets: tuple[bytes, ...] = ()

    @pytest.fixture(autouse=True)
    def storage(self, tmp_path: Path) -> None:
        self.path = tmp_path / "tasks.db"

    def open_store(self) -> AbstractAsyncContextManager[TaskStore]:
        return SQLiteTaskStore(self.path, secrets=self.secrets, poll_interval=0.01)


class TestSealedSQLiteTaskStore(TestSQLiteTaskStore):
    secrets = (SECRET, OLDER)
