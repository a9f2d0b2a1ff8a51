"""Changes of other processes are looked for only while somebody watches, and those of long ago are forgotten."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import MockClock

from trio_mcp.stores.sqlite.store import SqliteTaskStore
from trio_mcp.testing.task_stores.storage import NOW, create, next_of, record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


async def first(hints: AsyncIterator[str], number: int) -> list[str]:
    with trio.fail_after(PATIENCE):
        return [await anext(hints) for _ in range(number)]


async def test_own_changes_are_told_at_once(path: Path):
    async with SqliteTaskStore(path, poll_interval=1e6) as store, store.watch() as hints:
        await create(store, record("one"), record("two"))
        assert await first(hints, 2) == ["one", "two"]


async def test_own_changes_are_told_once(path: Path):
    async with SqliteTaskStore(path, poll_interval=0) as store, SqliteTaskStore(path) as other, store.watch() as hints:
        await create(store, record("ours"))
        await create(other, record("theirs"))
        assert sorted(await first(hints, 2)) == ["ours", "theirs"]


async def test_changes_of_others_are_told_in_their_order(path: Path):
    names = [f"task {number}" for number in range(20)]
    async with SqliteTaskStore(path, poll_interval=0.001) as store, store.watch() as hints:
        async with SqliteTaskStore(path) as other:
            await create(other, *map(record, names))
        assert await first(hints, 20) == names


async def test_next_look_for_changes_of_others_comes_after_the_interval(path: Path, autojump_clock: MockClock):
    async with SqliteTaskStore(path, poll_interval=10) as store, store.watch() as hints:
        begun = trio.current_time()
        async with SqliteTaskStore(path) as other:
            await create(other, record("one"))
        assert await anext(hints) == "one"
        assert trio.current_time() - begun == pytest.approx(10)


async def test_busy_watcher_of_own_changes_hears_of_others_too(path: Path):
    async with SqliteTaskStore(path, poll_interval=0.001) as store, store.watch() as hints:
        async with SqliteTaskStore(path) as other:
            await create(other, record("theirs"))
        one, heard = record("ours"), list[str]()
        await create(store, one)
        with trio.fail_after(PATIENCE):
            while "theirs" not in heard:
                one = next_of(one)
                await store.change(one)
                heard.append(await anext(hints))


async def test_nobody_looks_where_nobody_watches(path: Path, autojump_clock: MockClock):
    looks: list[str] = []
    async with SqliteTaskStore(path, poll_interval=1) as store:
        await store._database.read(lambda connection: connection.set_trace_callback(looks.append))
        async with store.watch():
            pass
        await trio.sleep(1000)
    assert len(looks) == 1


async def test_changes_of_long_ago_are_forgotten(path: Path):
    async with SqliteTaskStore(path) as store:
        await create(store, *(record(str(number), kept_until=NOW) for number in range(1500)))
        await store.expire(NOW + 1)
    connection = sqlite3.connect(path)
    (kept, last) = connection.execute("SELECT count(*), max(number) FROM changes").fetchone()
    connection.close()
    assert last == 3000
    assert 1000 <= kept < 1064


async def test_look_that_fails_loses_its_hints_and_no_more(path: Path, monkeypatch: pytest.MonkeyPatch):
    failed = trio.Event()

    async def fail(look: object) -> None:
        monkeypatch.undo()
        failed.set()
        raise OSError("the disk is gone")

    async with SqliteTaskStore(path, poll_interval=0.001) as store, store.watch() as hints:
        async with SqliteTaskStore(path) as other:
            await create(other, record("one"))
        monkeypatch.setattr(store._database, "read", fail)
        assert await first(hints, 1) == ["one"]
    assert failed.is_set()


async def test_watching_a_store_that_fails_is_an_error(path: Path):
    async with SqliteTaskStore(path.parent) as store:
        with pytest.raises(OSError, match="unable to open"):
            async with store.watch():
                pass
