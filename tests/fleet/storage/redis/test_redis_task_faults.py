"""A call about tasks without an answer has happened once or not at all, and what follows the call sets things right."""

from __future__ import annotations

import pytest
from tests.fleet.redis_server import RedisServer
from tests.fleet.redis_use import PREFIX
from tests.fleet.storage.redis.test_redis_shared_faults import with_faults

from trio_mcp.fleet.storage.redis.storage import RedisStorage
from trio_mcp.stores.shared import Replica
from trio_mcp.stores.task_store import TaskRecord
from trio_mcp.testing.stores.task_store_records import HOUR, change, claim, create, next_of, read_record, record


async def test_task_creation_with_an_uncertain_outcome_is_undone(redis_server: RedisServer):
    """Whether it has happened or not: the record goes, and the same creation is refused where it comes late."""

    async def attempt(one: Replica, number: int) -> None:
        await create(one.tasks, record(f"task {number}", holder="me"))

    async def check(other: Replica, number: int, returned: bool) -> None:
        name = f"task {number}"
        was_there = await other.tasks.read(None, name) is not None
        assert was_there or not returned
        assert await other.tasks.discard(name, retention_ms=HOUR) is was_there
        if not was_there:
            with pytest.raises(ValueError, match="was called with its id"):
                await create(other.tasks, record(name))
        assert await other.tasks.read(None, name) is None
        assert await other.tasks.page("ann", None, 9) == []

    await with_faults(redis_server, attempt, check)
    left = [name for name in redis_server.ask("KEYS", "*") if name.startswith(b"{%b:t}:" % PREFIX)]
    assert all(name.startswith(b"{%b:t}:v:" % PREFIX) for name in left)


async def test_task_change_is_applied_once_if_it_is_retried_after_an_uncertain_outcome(redis_server: RedisServer):
    """A reading shows whether it has happened, and the same call again makes it or is refused."""
    before = dict[int, TaskRecord]()
    after = dict[int, TaskRecord]()

    async def attempt(one: Replica, number: int) -> None:
        assert await one.tasks.change(after[number], expected_mark=before[number].mark, holder="me")

    async def check(other: Replica, number: int, returned: bool) -> None:
        found = await read_record(other.tasks, "one")
        happened = found == after[number]
        assert happened or (not returned and found == before[number])
        assert await other.tasks.change(after[number], expected_mark=before[number].mark, holder="me") is not happened
        assert await read_record(other.tasks, "one") == after[number]
        prepare(number + 1, after[number])

    def prepare(number: int, one: TaskRecord) -> None:
        before[number] = one
        after[number] = next_of(one, message=f"message {number}")

    async with RedisStorage(redis_server.url, limit=10.0).join("tested") as one:
        prepare(1, await create(one.tasks, record("one", holder="me")))
    await with_faults(redis_server, attempt, check)


async def test_each_task_is_claimed_by_at_most_one_replica_after_a_claim_with_an_uncertain_outcome(
    redis_server: RedisServer,
):
    """Others get what was not claimed, and nobody has what was."""

    async def attempt(one: Replica, number: int) -> None:
        assert set(await claim(one.tasks, f"one {number}")) == {"one", "two"}

    async def check(other: Replica, number: int, returned: bool) -> None:
        holders = {(await read_record(other.tasks, name)).holder for name in ("one", "two")}
        assert holders == {f"one {number}"} or (not returned and holders == {None})
        claimed = await claim(other.tasks, "other")
        assert set(claimed) == ({"one", "two"} if holders == {None} else set())
        for name in ("one", "two"):
            assert await change(other.tasks, await read_record(other.tasks, name), give_up=True) is not None

    async with RedisStorage(redis_server.url, limit=10.0).join("tested") as one:
        for name in ("one", "two"):
            await create(one.tasks, record(name))
    await with_faults(redis_server, attempt, check)


async def test_lease_renewal_can_be_repeated_after_an_uncertain_outcome(redis_server: RedisServer):
    """Each time, all leases are longer, or none is."""
    held = {"one": "me", "two": "me"}

    async def attempt(one: Replica, number: int) -> None:
        assert set(await one.tasks.renew({**held, "lost": "me"}, lease_ms=(2 * number + 1) * HOUR)) == {"lost"}

    async def check(other: Replica, number: int, returned: bool) -> None:
        ends = [round(((await read_record(other.tasks, name)).leased_until - created[name]) / HOUR) for name in held]
        assert ends in ([[2 * number + 1] * 2] if returned else [[2 * number + 1] * 2, [2 * number] * 2])
        assert set(await other.tasks.renew(held, lease_ms=(2 * number + 2) * HOUR)) == set()

    async with RedisStorage(redis_server.url, limit=10.0).join("tested") as one:
        created = {
            name: (await create(one.tasks, record(name, holder="me"), lease_ms=2 * HOUR)).created_at for name in held
        }
    await with_faults(redis_server, attempt, check)
