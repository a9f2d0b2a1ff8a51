"""The in-memory store keeps only its records, and uses trio's clock."""

from __future__ import annotations

import time

import trio
from trio.testing import MockClock

from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.testing.stores.task_store_records import HOUR, change, create, read_stored, record


async def test_length_of_a_memory_task_store_is_the_number_of_records(autojump_clock: MockClock):
    store = MemoryTaskStore()
    await create(store, record("one"))
    await create(store, record("two"), ttl_ms=1, retention_ms=0)
    assert len(store) == 2
    await trio.sleep(1)
    await store.expire(limit=9)
    assert len(store) == 1


async def test_memory_task_store_does_not_grow_if_the_retention_of_a_record_is_extended_repeatedly(
    autojump_clock: MockClock,
):
    store = MemoryTaskStore()
    one = await create(store, record("one"))
    for further in range(1000):
        changed = await change(store, one, kept_until=one.created_at + 1000 + further)
        assert changed is not None
        one = changed
    assert len(store._expiry) < 100
    await trio.sleep(1.5)
    assert await store.expire(limit=9) == 0
    await trio.sleep(1)
    assert await store.expire(limit=9) == 1


async def test_memory_task_store_is_empty_after_its_records_expire(autojump_clock: MockClock):
    store = MemoryTaskStore()
    await create(store, record("one", holder="me"), ttl_ms=1)
    await create(store, record("two", scope="bob"), ttl_ms=1)
    await store.renew({"one": "me"}, lease_ms=9000)
    assert not await store.discard("three", retention_ms=1)
    await trio.sleep(2 * HOUR / 1000)
    assert await store.expire(limit=9) == 2
    assert not await store.discard("four", retention_ms=0)
    assert not any((store._records, store._open, store._leases, store._order, store._expiry))
    assert list(store._discarded) == ["four"]


async def test_clock_of_a_memory_task_store_starts_at_wall_time_and_follows_the_trio_clock(autojump_clock: MockClock):
    store = MemoryTaskStore()
    one = await create(store, record("one"))
    assert abs(one.created_at - time.time() * 1000) < HOUR
    await trio.sleep(80_000)
    assert abs((await read_stored(store, "one")).now - one.created_at - 8e7) <= 1


def test_clock_of_a_memory_task_store_does_not_go_back_between_trio_runs():
    store, times = MemoryTaskStore(), list[int]()

    async def main(task_id: str) -> None:
        times.append((await create(store, record(task_id))).created_at)
        await trio.sleep(80_000)
        times.append((await create(store, record(f"{task_id} later"))).created_at)

    for task_id in ("one", "two"):
        trio.run(main, task_id, clock=MockClock(autojump_threshold=0))
    assert times == sorted(times)
    assert times[2] - times[0] >= 8e7 - 1
