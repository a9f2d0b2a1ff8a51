"""The clock of a store file is steady across changes of the system clock."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_mcp.fleet.storage.sqlite.storage import SQLiteStorage
from trio_mcp.stores import sqlite_database
from trio_mcp.stores.sqlite_database import steady_time, time_of_day
from trio_mcp.stores.sqlite_store import SQLiteTaskStore
from trio_mcp.stores.task_store import TaskStore
from trio_mcp.testing.stores.task_store import claim
from trio_mcp.testing.stores.task_store_records import HOUR, create, record

LEASE = 60_000
STEPS = [HOUR, -HOUR, 24 * HOUR, -1000 * 24 * HOUR, 2000]

pytestmark = pytest.mark.skipif(not sqlite_database.boot_id(), reason="the system has no name for its start")


class Machine:
    """The machine, as the stores see it: both clocks and the name of its start can be changed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.set_by = 0
        self.passed = 0
        self.boot = b"first"
        patch.setattr(sqlite_database, "time_of_day", lambda: time_of_day() + self.passed + self.set_by)
        patch.setattr(sqlite_database, "steady_time", lambda: steady_time() + self.passed)
        patch.setattr(sqlite_database, "boot_id", lambda: self.boot)

    def start_again(self, *, after: int) -> None:
        """Start the machine again, ``after`` so many milliseconds; the steady clock begins anew."""
        self.boot += b" again"
        self.set_by += after + HOUR
        self.passed -= HOUR


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


async def claimed(store: TaskStore, holder: str) -> set[str]:
    return set(await claim(store, holder, lease_ms=LEASE))


@pytest.mark.parametrize("step", STEPS)
async def test_task_lease_ends_on_time_after_a_system_clock_change(path: Path, machine: Machine, step: int):
    async with SQLiteTaskStore(path) as dead, SQLiteTaskStore(path) as living:
        await create(dead, record("left", holder="dead"), lease_ms=LEASE)
        await create(living, record("held", holder="living"), lease_ms=LEASE)
        machine.set_by = step
        async with SQLiteTaskStore(path) as other:  # opened after the step
            assert await claimed(other, "too early") == set()
            machine.passed = LEASE // 2
            assert await living.renew({"held": "living"}, lease_ms=LEASE) == []
            assert await claimed(other, "too early, too") == set()
            machine.passed = LEASE + 2
            assert await claimed(other, "other") == {"left"}
            machine.passed = LEASE + 3 * LEASE // 4
            assert await claimed(other, "another") == {"held"}


@pytest.mark.parametrize("step", STEPS)
async def test_task_expires_on_time_after_a_system_clock_change(path: Path, machine: Machine, step: int):
    async with SQLiteTaskStore(path) as store:
        kept = await create(store, record("one"), ttl_ms=LEASE, retention_ms=LEASE)
        machine.set_by = step
        async with SQLiteTaskStore(path) as other:
            for each in (store, other):
                found = await each.read("ann", "one")
                assert found is not None
                assert found.now < kept.created_at + LEASE // 2
                assert await each.expire(limit=9) == 0
                assert [record.id for record in await each.page("ann", None, 9)] == ["one"]
            machine.passed = 2 * LEASE + 2
            assert await other.page("ann", None, 9) == []
            assert await other.expire(limit=9) == 1


@pytest.mark.parametrize("step", STEPS)
async def test_shared_data_expires_on_time_after_a_system_clock_change(path: Path, machine: Machine, step: int):
    storage = SQLiteStorage(path)
    async with storage.join("weather") as one, storage.join("weather") as two:
        await one.sessions.open("session", b"facts", caller=b"ann", mark=b"mark", idle_ms=LEASE, limit=9)
        await one.courier.heartbeat(lease_ms=LEASE)
        assert await one.replay_guard.add(bytes(32), ttl_ms=LEASE)
        machine.set_by = step
        async with storage.join("weather") as three:
            for each in (one, two, three):
                assert await each.sessions.read("session", idle_ms=LEASE) is not None
                assert set(await each.courier.find_dead([one.id])) == set()
                assert not await each.replay_guard.add(bytes(32), ttl_ms=LEASE)
            machine.passed = LEASE + 2
            assert await three.sessions.read("session", idle_ms=LEASE) is None
            assert set(await three.courier.find_dead([one.id])) == {one.id}
            assert await three.replay_guard.add(bytes(32), ttl_ms=LEASE)


@pytest.mark.parametrize("after", [2000, 10 * HOUR, -HOUR])
async def test_task_leases_have_expired_after_a_reboot(path: Path, machine: Machine, after: int):
    """Its clock may have been lost."""
    async with SQLiteStorage(path).join("weather") as replica:
        await create(replica.tasks, record("held", holder="dead"), lease_ms=HOUR)
        await replica.courier.heartbeat(lease_ms=HOUR)
        first = replica.id
    machine.start_again(after=after)
    async with SQLiteStorage(path).join("weather") as replica:
        assert set(await replica.courier.find_dead([first])) == {first}
        new = await create(replica.tasks, record("new", holder="us"), lease_ms=LEASE)
        assert abs(new.created_at - sqlite_database.time_of_day()) < LEASE
        assert await claimed(replica.tasks, "us, too") == {"held"}


async def test_task_store_file_of_an_earlier_version_without_a_clock_table_can_be_used(path: Path, machine: Machine):
    async with SQLiteTaskStore(path) as store:
        await create(store, record("held", holder="living"), lease_ms=LEASE)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE clock")
    connection.close()
    async with SQLiteTaskStore(path) as store:
        assert await claimed(store, "too early") == set(), "a process of that version may be running"
        machine.set_by = HOUR
        assert await claimed(store, "too early") == set()
        machine.passed = LEASE + 2
        assert await claimed(store, "other") == {"held"}


async def test_task_store_clock_uses_wall_time_if_there_is_no_boot_id(path: Path, machine: Machine):
    machine.boot = b""
    async with SQLiteTaskStore(path) as store:
        before = await create(store, record("before"))
        machine.set_by = 2 * HOUR
        after = await create(store, record("after"))
        assert after.created_at - before.created_at >= 2 * HOUR


async def test_processes_that_concurrently_create_an_sqlite_task_store_use_the_same_clock(path: Path, machine: Machine):
    stores = [SQLiteTaskStore(path) for _ in range(8)]
    created = dict[str, Any]()

    async def begin(name: str, store: SQLiteTaskStore) -> None:
        machine.set_by += HOUR
        async with store:
            created[name] = (await create(store, record(name))).created_at

    async with trio.open_nursery() as nursery:
        for number, store in enumerate(stores):
            nursery.start_soon(begin, str(number), store)
    assert max(created.values()) - min(created.values()) < HOUR / 2
