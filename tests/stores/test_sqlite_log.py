"""The write-ahead log stays short, and slow readers block no writers."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from trio_mcp.stores import sqlite_database
from trio_mcp.stores.sqlite_store import SQLiteTaskStore
from trio_mcp.testing.stores.task_store_records import create, record

LONG = 200_000


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sqlite_database, "_LONG_LOG", LONG)
    monkeypatch.setattr(sqlite_database, "_PATIENCE_MS", 5)
    return tmp_path / "tasks.db"


def length(path: Path) -> int:
    """Bytes of the log."""
    return path.with_name(f"{path.name}-wal").stat().st_size


def reader(path: Path) -> sqlite3.Connection:
    """Somebody who reads for long, as a backup does."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM tasks").fetchall()
    return connection


async def fill(store: SQLiteTaskStore, name: str, megabytes: float) -> None:
    await create(store, record(name, params=bytes(int(megabytes * 1_000_000))))


async def test_long_write_ahead_log_is_truncated(path: Path):
    async with SQLiteTaskStore(path) as store:
        await fill(store, "small", 0.01)
        assert 0 < length(path) < LONG
        await fill(store, "large", 0.3)
        assert length(path) == 0


async def test_write_ahead_log_in_use_by_a_reader_is_truncated_later(path: Path):
    async with SQLiteTaskStore(path) as store:
        await fill(store, "first", 0.01)
        there = reader(path)
        await fill(store, "second", 0.3)
        assert length(path) > LONG
        there.close()
        await fill(store, "third", 0.01)
        assert length(path) > LONG, "the next try comes when the log has grown"
        await fill(store, "fourth", 0.3)
        assert length(path) == 0
        assert [each.id for each in await store.page("ann", None, 9)] == ["first", "second", "third", "fourth"]


async def test_truncating_the_write_ahead_log_keeps_the_busy_timeout_of_the_connection(path: Path):
    async with SQLiteTaskStore(path, busy_timeout=7) as store:
        await fill(store, "large", 0.3)
        rows = await store._database.write(lambda connection: connection.execute("PRAGMA busy_timeout").fetchall())
    assert rows == [(7000,)]


async def test_task_store_change_is_stored_even_if_the_write_ahead_log_file_is_missing(path: Path):
    async with SQLiteTaskStore(path) as store:
        store._database._log = sqlite_database.WriteAheadLog(path.with_name("elsewhere"))
        await fill(store, "large", 0.3)
        assert await store.read("ann", "large") is not None
