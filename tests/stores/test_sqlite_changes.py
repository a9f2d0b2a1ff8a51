"""Polling for changes of other processes, and deletion of old change records."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import MockClock

from trio_mcp.stores import sqlite_store
from trio_mcp.stores.sqlite_store import SQLiteTaskStore
from trio_mcp.stores.task_store import HINTS_LOST, Hint
from trio_mcp.testing.stores.task_store_records import change, create, record, wait_past


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


async def first(hints: AsyncIterator[Hint], number: int) -> list[Hint]:
    with trio.fail_after(PATIENCE):
        return [await anext(hints) for _ in range(number)]


async def test_task_store_reports_its_own_changes_to_its_watchers_immediately(path: Path):
    async with SQLiteTaskStore(path, poll_interval=1e6) as store, store.watch() as hints:
        for name in ("one", "two"):
            await create(store, record(name))
        assert await first(hints, 2) == ["one", "two"]


async def test_task_store_reports_its_own_changes_to_its_watchers_only_once(path: Path):
    async with SQLiteTaskStore(path, poll_interval=0) as store, SQLiteTaskStore(path) as other, store.watch() as hints:
        await create(store, record("ours"))
        await create(other, record("theirs"))
        assert sorted(await first(hints, 2)) == ["ours", "theirs"]


async def test_task_store_reports_changes_by_another_process_to_its_watchers_in_order(path: Path):
    names = [f"task {number}" for number in range(20)]
    async with SQLiteTaskStore(path, poll_interval=0.001) as store, store.watch() as hints:
        async with SQLiteTaskStore(path) as other:
            for name in names:
                await create(other, record(name))
        assert await first(hints, 20) == names


async def test_task_store_polls_for_changes_by_another_process_at_the_interval(path: Path, autojump_clock: MockClock):
    async with SQLiteTaskStore(path, poll_interval=10) as store, store.watch() as hints:
        begun = trio.current_time()
        async with SQLiteTaskStore(path) as other:
            await create(other, record("one"))
        assert await anext(hints) == "one"
        assert trio.current_time() - begun == pytest.approx(10)


async def test_task_store_with_many_own_changes_also_reports_changes_by_another_store(path: Path):
    async with SQLiteTaskStore(path, poll_interval=0.001) as store, store.watch() as hints:
        async with SQLiteTaskStore(path) as other:
            await create(other, record("theirs"))
        one, heard = await create(store, record("ours")), list[Hint]()
        with trio.fail_after(PATIENCE):
            while "theirs" not in heard:
                changed = await change(store, one)
                assert changed is not None
                one = changed
                heard.append(await anext(hints))


async def test_task_store_file_is_not_polled_if_there_are_no_watchers(path: Path, autojump_clock: MockClock):
    looks: list[str] = []
    async with SQLiteTaskStore(path, poll_interval=1) as store:
        await store._database.read(lambda connection: connection.set_trace_callback(looks.append))
        async with store.watch():
            pass
        await trio.sleep(1000)
    assert len(looks) == 1


async def test_old_change_records_of_the_sqlite_task_store_are_deleted(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_store, "_CHANGES_KEPT", 1000)
    async with SQLiteTaskStore(path) as store:
        created = [await create(store, record(str(number)), ttl_ms=1, retention_ms=0) for number in range(1500)]
        await create(store, last := record("last"))
        await wait_past(store, last, created[-1].kept_until or 0)
        assert await store.expire(limit=9999) == 1500
    connection = sqlite3.connect(path)
    (kept, last) = connection.execute("SELECT count(*), max(number) FROM changes").fetchone()
    connection.close()
    assert last == 3001
    assert 1000 <= kept < 1064


async def test_watcher_of_a_task_store_gets_a_report_of_lost_changes_if_old_change_records_were_deleted(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sqlite_store, "_CHANGES_KEPT", 1000)
    async with SQLiteTaskStore(path, poll_interval=0.001) as store, store.watch() as hints:
        async with SQLiteTaskStore(path) as other:
            for number in range(1200):
                await create(other, record(str(number)))
        assert await first(hints, 1) == [HINTS_LOST]
        with trio.fail_after(PATIENCE):
            while await anext(hints) != "1199":
                pass


async def test_failed_poll_of_the_sqlite_task_store_is_retried_and_its_watchers_continue(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    failed = trio.Event()

    async def fail(look: object) -> None:
        monkeypatch.undo()
        failed.set()
        raise OSError("the disk is gone")

    async with SQLiteTaskStore(path, poll_interval=0.001) as store, store.watch() as hints:
        async with SQLiteTaskStore(path) as other:
            await create(other, record("one"))
        monkeypatch.setattr(store._database, "read", fail)
        assert await first(hints, 1) == ["one"]
    assert failed.is_set()


async def test_watching_an_sqlite_task_store_with_an_unusable_file_raises_os_error(path: Path):
    async with SQLiteTaskStore(path.parent) as store:
        with pytest.raises(OSError, match="unable to open"):
            async with store.watch():
                pass
