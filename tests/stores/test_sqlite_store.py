"""The SQLite store with several processes, newer versions, and manipulated files."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

import trio_mcp
from trio_mcp.stores.sqlite_store import SQLiteTaskStore
from trio_mcp.stores.task_store import StoreDown, UnreadableRecord
from trio_mcp.testing.stores.task_store_records import (
    HOUR,
    change,
    claim,
    create,
    finished,
    read_record,
    record,
    wait_past,
)

SECRET, OTHER = bytes(range(32)), bytes(range(32, 64))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


def execute(path: Path, *statements: str) -> list[Any]:
    """Execute statements in a connection of our own, and return the rows of the last."""
    connection = sqlite3.connect(path)
    try:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


def take_away(path: Path, how: str) -> None:
    """Delete the file, or put another one in its place."""
    path.unlink()
    if how == "replaced":
        path.with_name("other.db").rename(path)


def modes(path: Path) -> dict[str, int]:
    """The files in the folder of the store, and their modes."""
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}


def content(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


# The file


async def test_task_records_are_readable_after_the_sqlite_task_store_was_reopened(path: Path):
    async with SQLiteTaskStore(path) as store:
        await create(store, record("one"))
    async with SQLiteTaskStore(path) as store:
        assert (await read_record(store, "one")).id == "one"


async def test_sqlite_task_store_that_was_closed_reopens_its_file_at_the_next_use(path: Path):
    store = SQLiteTaskStore(path)
    await create(store, record("one"))
    await store.aclose()
    await store.aclose()
    assert (await read_record(store, "one")).id == "one"
    await store.aclose()


async def test_closed_sqlite_task_store_leaves_only_the_database_file(path: Path):
    async with SQLiteTaskStore(path) as store:
        await create(store, record("one"))
    assert set(modes(path)) == {"tasks.db"}


async def test_sqlite_task_store_closes_its_file_when_the_trio_task_around_it_is_cancelled(path: Path):
    with trio.CancelScope() as scope:
        async with SQLiteTaskStore(path) as store:
            await create(store, record("one"))
            scope.cancel()
    assert set(modes(path)) == {"tasks.db"}


async def test_new_sqlite_task_store_files_have_mode_600(path: Path):
    async with SQLiteTaskStore(path) as store:
        await create(store, record("one"))
        await store.read("ann", "one")
        files = modes(path)
    assert files == {"tasks.db": 0o600, "tasks.db-wal": 0o600, "tasks.db-shm": 0o600}


async def test_sqlite_task_store_keeps_the_mode_of_an_existing_file(path: Path):
    os.close(os.open(path, os.O_CREAT, 0o640))
    async with SQLiteTaskStore(path) as store:
        await create(store, record("one"))
    assert modes(path) == {"tasks.db": 0o640}


def test_sqlite_task_store_creates_no_file_before_its_first_use(path: Path):
    SQLiteTaskStore(path)
    assert not path.exists()


async def test_relative_path_of_an_sqlite_task_store_is_resolved_when_the_store_is_created(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(path.parent)
    async with SQLiteTaskStore(path.name) as store:
        monkeypatch.chdir("/")
        await create(store, record("one"))
    assert set(modes(path)) == {"tasks.db"}


@pytest.mark.commands
async def test_sqlite_task_store_that_is_never_closed_leaks_no_resources(path: Path):
    code = (
        "import sys, trio\nfrom functools import partial\n"
        "from trio_mcp.stores.sqlite_store import SQLiteTaskStore\n"
        "store = SQLiteTaskStore(sys.argv[1])\n"
        "trio.run(partial(store.expire, limit=1))\n"
        "trio.run(store.read, None, 'x')\n"
    )
    ran = await trio.run_process(
        [sys.executable, "-W", "error", "-X", "dev", "-c", code, str(path)], capture_stderr=True
    )
    assert ran.stderr == b""
    assert set(modes(path)) == {"tasks.db"}


@pytest.mark.parametrize(("synchronous", "level"), [("normal", 1), ("full", 2)])
async def test_synchronous_option_sets_the_synchronous_level_of_sqlite(path: Path, synchronous: Any, level: int):
    async with SQLiteTaskStore(path, synchronous=synchronous) as store:
        rows = await store._database.write(lambda connection: connection.execute("PRAGMA synchronous").fetchall())
    assert rows == [(level,)]


def test_sqlite_task_store_raises_for_an_unknown_synchronous_level(path: Path):
    with pytest.raises(ValueError, match='"normal" or "full"'):
        SQLiteTaskStore(path, synchronous="off")  # type: ignore[arg-type]


@pytest.mark.commands
def test_sqlite3_module_is_imported_only_when_the_sqlite_task_store_is_used():
    code = "import sys, trio_mcp; trio_mcp.stores.MemoryTaskStore; print('sqlite3' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "False\n"
    assert trio_mcp.stores.SQLiteTaskStore is SQLiteTaskStore


# Files that are not for us


async def test_task_store_file_of_a_newer_version_is_refused_and_not_changed(path: Path):
    async with SQLiteTaskStore(path) as store:
        await create(store, record("one"))
    execute(path, "PRAGMA user_version = 3")
    before = content(path)
    async with SQLiteTaskStore(path) as store:
        with pytest.raises(
            OSError, match=r"has schema version 3, written by a newer trio-mcp; this one supports version 2"
        ):
            await create(store, record("two"))
        with pytest.raises(OSError, match="has schema version 3"):
            await store.read("ann", "one")
    assert content(path) == before


async def test_task_store_file_of_a_prerelease_version_is_refused_and_not_changed(path: Path):
    async with SQLiteTaskStore(path) as store:
        await create(store, record("one"))
    execute(path, "PRAGMA user_version = 1")
    before = content(path)
    async with SQLiteTaskStore(path) as store:
        with pytest.raises(StoreDown, match=r"has schema version 1, .* move the file away, and a new one is created"):
            await create(store, record("two"))
    assert content(path) == before


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_sqlite_task_store_raises_store_down_if_its_file_was_deleted_or_replaced(path: Path, how: str):
    async with SQLiteTaskStore(path) as store, SQLiteTaskStore(path.with_name("other.db")) as other:
        await create(store, record("one"))
        await store.read("ann", "one")
        await create(other, record("two"))
        await other.aclose()
        take_away(path, how)
        for call in (lambda: create(store, record("three")), lambda: store.read("ann", "one")):
            with pytest.raises(StoreDown, match="was deleted or replaced"):
                await call()
        if how == "deleted":
            assert await store.read("ann", "one") is None
            await create(store, record("four"))


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE notes (text)", "PRAGMA user_version = 1", "PRAGMA application_id = 7"]
)
async def test_sqlite_task_store_refuses_the_database_of_another_program_and_does_not_change_it(
    path: Path, statement: str
):
    execute(path, statement)
    before = content(path)
    async with SQLiteTaskStore(path) as store:
        with pytest.raises(OSError, match="is not a task store: it is another kind of database"):
            await create(store, record("one"))
    assert content(path) == before


async def test_sqlite_task_store_refuses_a_file_that_is_not_a_database_and_does_not_change_it(path: Path):
    write(path, b"notes " * 1000)
    async with SQLiteTaskStore(path) as store:
        with pytest.raises(OSError, match=r"the task store in .*tasks.db failed: file is not a database"):
            await create(store, record("one"))
    assert content(path) == b"notes " * 1000


async def test_sqlite_task_store_raises_store_down_if_its_folder_is_missing(path: Path):
    async with SQLiteTaskStore(path.parent / "missing" / "tasks.db") as store:
        with pytest.raises(StoreDown, match="No such file"):
            await create(store, record("one"))
    async with SQLiteTaskStore(path.parent) as store:
        with pytest.raises(OSError, match="unable to open"):
            await create(store, record("one"))


async def test_sqlite_task_store_raises_os_error_if_the_sqlite_library_is_too_old(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    async with SQLiteTaskStore(path) as store:
        with pytest.raises(OSError, match=r"SQLite must be 3\.35 or newer, not 3\.34\.1"):
            await create(store, record("one"))


async def test_sqlite_task_store_raises_os_error_on_a_file_system_without_write_ahead_log_support(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            return super().execute(statement.replace("WAL", "DELETE"), *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Connection))
    async with SQLiteTaskStore(path) as store:
        with pytest.raises(OSError, match="cannot have a write-ahead log"):
            await create(store, record("one"))


# Failures


async def test_write_to_a_locked_sqlite_file_fails_after_busy_timeout_and_succeeds_later(path: Path):
    async with SQLiteTaskStore(path, busy_timeout=0.05) as store:
        await create(store, record("one"))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match="database is locked"):
            await create(store, record("two"))
        assert (await read_record(store, "one")).id == "one"
        other.execute("ROLLBACK")
        other.close()
        assert await store.read("ann", "two") is None
        await create(store, record("two"))


async def test_sqlite_write_waits_for_another_process_that_writes(path: Path):
    async with SQLiteTaskStore(path, busy_timeout=PATIENCE) as store:
        await create(store, record("one"))
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, store, record("two"))
            await wait_all_tasks_blocked(0.05)
            assert await store.read("ann", "two") is None
            other.execute("ROLLBACK")
        other.close()
        assert (await read_record(store, "two")).id == "two"


async def test_opening_a_new_store_file_waits_while_another_process_locks_the_file(path: Path):
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    async with SQLiteTaskStore(path, busy_timeout=PATIENCE) as store, trio.open_nursery() as nursery:
        nursery.start_soon(create, store, record("one"))
        await wait_all_tasks_blocked(0.05)
        other.execute("ROLLBACK")
        other.close()
    async with SQLiteTaskStore(path) as store:
        assert (await read_record(store, "one")).id == "one"


async def test_new_sqlite_file_that_is_locked_beyond_busy_timeout_raises_os_error(path: Path):
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with SQLiteTaskStore(path, busy_timeout=0.05) as store:
        with trio.fail_after(PATIENCE), pytest.raises(OSError, match="database is locked"):
            await create(store, record("one"))
    other.close()


async def test_sqlite_write_fails_and_changes_nothing_if_the_disk_is_full(path: Path):
    async with SQLiteTaskStore(path) as store:
        await create(store, record("one"))
        await store._database.write(lambda connection: connection.execute("PRAGMA max_page_count = 40"))
        with pytest.raises(OSError, match="database or disk is full"):
            await create(store, record("two", params=bytes(1_000_000)))
        await create(store, record("three"))
        assert [each.id for each in await store.page("ann", None, 9)] == ["one", "three"]


async def test_sqlite_task_store_writes_a_lease_renewal_before_queued_writes(path: Path):
    entered, release, order = threading.Event(), threading.Event(), list[str]()

    def hold(_: sqlite3.Connection) -> None:
        entered.set()
        release.wait(PATIENCE)

    async def add(name: str) -> None:
        await create(store, record(name))
        order.append(name)

    async def renew() -> None:
        assert set(await store.renew({"held": "me"}, lease_ms=HOUR)) == set()
        order.append("renewal")

    async with SQLiteTaskStore(path) as store, trio.open_nursery() as nursery:
        await create(store, record("held", holder="me"))
        nursery.start_soon(store._database.write, hold)
        await trio.to_thread.run_sync(entered.wait, PATIENCE)
        for name in ("one", "two", "three"):
            nursery.start_soon(add, name)
        await wait_all_tasks_blocked()
        nursery.start_soon(renew)
        await wait_all_tasks_blocked()
        release.set()
    assert order[0] == "renewal"


# Records that cannot be read


async def test_damaged_task_record_raises_unreadable_record_and_other_records_are_readable(path: Path):
    async with SQLiteTaskStore(path) as store:
        await create(store, record("good"))
        await create(store, record("bad"))
        execute(path, "UPDATE tasks SET body = x'00' WHERE id = CAST('bad' AS BLOB)")
        assert (await read_record(store, "good")).id == "good"
        for scope in ("ann", "bob", None):
            with pytest.raises(UnreadableRecord):
                await store.read(scope, "bad")
        with pytest.raises(UnreadableRecord):
            await store.page("ann", None, 9)


async def test_damaged_task_record_does_not_block_claims_of_other_tasks(path: Path, caplog: pytest.LogCaptureFixture):
    async with SQLiteTaskStore(path) as store:
        await create(store, record("bad"))
        await create(store, record("good"))
        execute(path, "UPDATE tasks SET body = x'00' WHERE id = CAST('bad' AS BLOB)")
        with caplog.at_level(logging.ERROR, "trio_mcp"):
            assert set(await claim(store, "me")) == {"good"}
            assert await claim(store, "me") == {}
    assert [line.getMessage() for line in caplog.records] == ["An abandoned task cannot be read, so no process runs it"]


async def test_store_claims_only_tasks_whose_records_it_can_decrypt_and_decode(path: Path):
    async with SQLiteTaskStore(path, secrets=[SECRET]) as store, SQLiteTaskStore(path, secrets=[OTHER]) as other:
        await create(store, record("one"))
        await create(store, record("later"))
        execute(path, "UPDATE leases SET form = x'02' WHERE id = CAST('later' AS BLOB)")
        assert await claim(other, "other") == {}
        assert set(await claim(store, "me")) == {"one"}


async def test_encrypted_task_records_are_refused_if_their_bodies_are_swapped(path: Path):
    async with SQLiteTaskStore(path, secrets=[SECRET]) as store:
        await create(store, record("anns"))
        await create(store, record("bobs", scope="bob"))
        rows = dict(execute(path, "SELECT CAST(id AS TEXT), hex(body) FROM tasks"))
        execute(path, f"UPDATE tasks SET body = x'{rows['anns']}' WHERE id = CAST('bobs' AS BLOB)")
        with pytest.raises(UnreadableRecord, match="modified without the secret"):
            await store.read("bob", "bobs")


async def test_encrypted_task_record_moved_to_another_caller_is_refused(path: Path):
    async with SQLiteTaskStore(path, secrets=[SECRET]) as store:
        await create(store, record("anns"))
        await create(store, record("bobs", scope="bob"))
        execute(path, "UPDATE tasks SET scope = (SELECT scope FROM tasks WHERE id = CAST('bobs' AS BLOB))")
        with pytest.raises(UnreadableRecord, match="the scope column of a stored task was modified"):
            await store.read("bob", "anns")
        with pytest.raises(UnreadableRecord, match="the scope column of a stored task was modified"):
            await store.page("bob", None, 9)


# The clock


async def test_live_process_keeps_its_tasks_if_the_system_clock_is_set_forward(path: Path):
    ahead = 0

    def clock() -> int:
        return int(time.time() * 1000) + ahead

    async with SQLiteTaskStore(path) as store, SQLiteTaskStore(path) as other:
        store._now = other._now = clock
        await create(store, record("held", holder="me"))
        free = await create(store, record("free", holder="me"))
        assert await claim(other, "you") == {}
        ahead = 2 * HOUR
        assert await change(store, free, holder="me", give_up=True) is not None
        assert set(await claim(other, "you 2", lease_ms=60_000)) == {"free"}, "what was given up is free"
        assert await claim(other, "you 3", lease_ms=60_000) == {}
        assert set(await store.renew({"held": "me"}, lease_ms=HOUR)) == set()
        other._claims_suspended_until = 0.0  # a lease later
        assert await claim(other, "you 4") == {}
        ahead = 4 * HOUR
        assert await claim(other, "you 5", lease_ms=1) == {}
        await trio.sleep(0.01)
        assert set(await claim(other, "you 6")) == {"held", "free"}


# Secrets


async def test_encrypted_task_store_file_contains_neither_callers_nor_content_in_plain_text(path: Path):
    async with SQLiteTaskStore(path, secrets=[SECRET]) as store:
        await create(store, record("one", scope="a rare name", params=b'"a rare word"'))
        for file in path.parent.iterdir():
            assert b"rare" not in content(file)


async def test_task_record_is_re_encrypted_with_the_first_secret_when_it_changes(path: Path):
    async with SQLiteTaskStore(path, secrets=[OTHER]) as store:
        a, b = await create(store, record("a")), await create(store, record("b"))
    async with SQLiteTaskStore(path, secrets=[SECRET, OTHER]) as store:
        await create(store, record("c"))
        assert await change(store, a, message="new") is not None
        assert [each.id for each in await store.page("ann", None, 9)] == ["a", "b", "c"]
        assert [each.id for each in await store.page("ann", (b.position, b.id), 9)] == ["c"]
        with pytest.raises(trio_mcp.stores.StoreFull):
            await create(store, record("d"), limit=9, scope_limit=3)
    async with SQLiteTaskStore(path, secrets=[SECRET]) as store:
        assert [each.id for each in await store.page("ann", None, 9)] == ["a", "c"]
        with pytest.raises(UnreadableRecord, match="none of the secrets"):
            await store.read("ann", "b")


async def test_sqlite_task_store_with_secrets_refuses_unencrypted_records(path: Path):
    async with SQLiteTaskStore(path) as forger, SQLiteTaskStore(path, secrets=[SECRET]) as store:
        await create(forger, record("forged"))
        assert await claim(store, "me") == {}
        with pytest.raises(UnreadableRecord, match="is not encrypted"):
            await store.read("ann", "forged")


def test_sqlite_task_store_raises_at_creation_if_a_secret_is_too_short(path: Path):
    with pytest.raises(ValueError, match="at least 32 bytes"):
        SQLiteTaskStore(path, secrets=[b"short"])


# The cost of what is there already


@pytest.mark.parametrize("secrets", [(), (SECRET, OTHER)], ids=["plain", "two secrets"])
async def test_sql_statements_never_scan_a_whole_table(path: Path, secrets: tuple[bytes, ...]):
    statements: list[str] = []

    def trace(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(statements.append)

    async with SQLiteTaskStore(path, secrets=secrets) as store:
        await store._database.write(trace)
        await store._database.read(trace)
        one = await create(store, record("one", holder="me"))
        await create(store, record("two"))
        await store.read("ann", "one")
        await store.marks(["one"])
        await store.page("ann", (one.position, one.id), 9)
        one = await change(store, one, holder="me")
        assert one is not None
        await store.renew({"one": "me", "two": "me"}, lease_ms=HOUR)
        assert set(await claim(store, "you")) == {"two"}
        await change(store, one, holder="me", give_up=True)
        await store.discard("three", retention_ms=0)
        await store.expire(limit=9)
        async with store.watch():
            pass
    plans = [
        row[3]
        for statement in statements
        if not statement.startswith(("BEGIN", "COMMIT", "PRAGMA", "--"))
        for row in execute(path, f"EXPLAIN QUERY PLAN {statement}")
    ]
    assert len(plans) > 10
    ours = ("SCAN total", "SCAN asked VIRTUAL TABLE INDEX 1:", "SCAN json_each VIRTUAL TABLE INDEX 1:")
    assert [plan for plan in plans if plan.startswith("SCAN") and "CONSTANT" not in plan and plan not in ours] == []


async def test_stored_counts_of_task_records_are_correct_after_creation_change_and_expiry(path: Path):
    async with SQLiteTaskStore(path, secrets=[OTHER]) as store:
        a = await create(store, record("a"))
        await create(store, record("b"), ttl_ms=1, retention_ms=0)
        last = await create(store, record("c", scope="bob"), ttl_ms=1, retention_ms=0)
    async with SQLiteTaskStore(path, secrets=[SECRET, OTHER]) as store:
        await create(store, record("d"))
        assert await store.change(finished(a), expected_mark=a.mark, holder=None)
        await wait_past(store, a, last.kept_until or 0)
        assert await store.expire(limit=9) == 2
    assert execute(path, "SELECT records FROM total") == [(2,)]
    counted = execute(path, "SELECT scope, records FROM scopes ORDER BY scope")
    assert counted == execute(path, "SELECT scope, count(*) FROM tasks GROUP BY scope ORDER BY scope")


def test_task_record_attributes_cannot_be_assigned():
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        record("one").version = 2  # type: ignore[misc]
