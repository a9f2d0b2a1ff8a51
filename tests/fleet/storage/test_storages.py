"""Our storages do what every storage that replicas share has to do."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from trio.testing import MockClock

from trio_mcp.fleet.storage.memory import MemoryStorage
from trio_mcp.fleet.storage.sqlite.storage import SQLiteStorage
from trio_mcp.stores.shared import Replica
from trio_mcp.testing import SharedStorageSuite


def test_shared_storage_suite_has_no_duplicate_test_names():
    names = Counter(name for kind in SharedStorageSuite.__mro__ for name in vars(kind) if name.startswith("test_"))
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == []


class TestMemory(SharedStorageSuite):
    @pytest.fixture(autouse=True)
    def storage(self, autojump_clock: MockClock) -> None:
        self.memory = MemoryStorage()

    def open_replica(self, name: str = "tested") -> AbstractAsyncContextManager[Replica]:
        return self.memory.join(name)


class TestSQLite(SharedStorageSuite):
    @pytest.fixture(autouse=True)
    def storage(self, tmp_path: Path) -> None:
        self.path = tmp_path / "shared.db"

    def open_replica(self, name: str = "tested") -> AbstractAsyncContextManager[Replica]:
        return SQLiteStorage(self.path, poll_interval=0.01).join(name)
