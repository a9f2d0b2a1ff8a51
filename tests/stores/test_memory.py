"""The store in memory keeps no more than the records."""

from __future__ import annotations

from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.testing.task_stores.storage import NOW, create, next_of, record


async def test_length_is_the_number_of_records():
    store = MemoryTaskStore()
    await create(store, record("one"), record("two", kept_until=NOW))
    assert len(store) == 2
    await store.expire(NOW + 1)
    assert len(store) == 1


async def test_record_that_is_kept_ever_longer_takes_no_more_room():
    store = MemoryTaskStore()
    one = record("one")
    await create(store, one)
    for further in range(1000):
        one = next_of(one, kept_until=NOW + further)
        assert await store.change(one)
    assert len(store._expiry) < 100
    assert await store.expire(NOW + 999) == 0
    assert await store.expire(NOW + 1000) == 1


async def test_nothing_is_left_of_records_that_are_gone():
    store = MemoryTaskStore()
    await create(store, record("one", owner="me"), record("two", scope="bob"))
    await store.renew("me", ["one"], NOW + 9000)
    assert await store.expire(NOW + 10**6) == 2
    assert not any((store._records, store._open, store._renewed, store._order, store._expiry))
