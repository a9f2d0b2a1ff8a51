"""Tasks are safe in Redis: nothing is left, nobody writes who has lost, and no number of a peer does harm."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.fleet.redis_server import RedisServer
from tests.fleet.storage.redis.test_redis_topologies import cluster_of, until_whole
from tests.patience import PATIENCE

from trio_mcp.fleet.storage.redis import task_store
from trio_mcp.fleet.storage.redis.link import Link, open_link
from trio_mcp.fleet.storage.redis.task_store import RedisTaskStore
from trio_mcp.stores.task_store import (
    HINTS_LOST,
    HintQueues,
    StoreDown,
    StoreFull,
    TaskStore,
    Uncertain,
    UnreadableRecord,
)
from trio_mcp.testing.stores.task_store import TaskStoreSuite
from trio_mcp.testing.stores.task_store_records import (
    HOUR,
    change,
    claim,
    create,
    finished,
    interruptions,
    read_record,
    record,
    wait_past,
)

SECRET, OLDER = bytes(range(32)), bytes(range(32, 64))
PREFIX, BUS = b"test:1", b"test:bus"
BASE = b"{test:1:t}:"


@asynccontextmanager
async def open_reached(url: str, limit: float = 10.0) -> AsyncGenerator[Link]:
    """Open a link, and wait until it has reached Redis."""
    async with open_link(url, limit=limit) as link:
        with trio.fail_after(PATIENCE):
            await link.wait_until_up()
        yield link


@asynccontextmanager
async def open_store(
    url: str, secrets: tuple[bytes, ...] = (), *, prefix: bytes = PREFIX, hears: bool = True, limit: float = 10.0
) -> AsyncGenerator[RedisTaskStore]:
    """Open a store on a link of its own, as a replica does."""
    watchers = HintQueues[str]()

    async def pass_on(messages: Any) -> None:
        async for message in messages:
            watchers.notify([HINTS_LOST if message is HINTS_LOST else message.data.removeprefix(b"t").decode()])

    async with (
        open_reached(url, limit) as link,
        link.subscribe([BUS.decode()]) as messages,
        trio.open_nursery() as nursery,
    ):
        if hears:
            nursery.start_soon(pass_on, messages)
        yield RedisTaskStore(link, prefix, BUS, watchers, secrets)
        nursery.cancel_scope.cancel(reason="the store is closed")


class TestRedisTaskStore(TaskStoreSuite):
    secrets: tuple[bytes, ...] = ()

    @pytest.fixture(autouse=True)
    def storage(self, redis_url: str) -> None:
        self.url = redis_url

    def open_store(self) -> AbstractAsyncContextManager[TaskStore]:
        return open_store(self.url, self.secrets)


class TestSealedRedisTaskStore(TestRedisTaskStore):
    secrets = (SECRET, OLDER)


@pytest.fixture
async def store(redis_url: str) -> AsyncGenerator[RedisTaskStore]:
    async with open_store(redis_url) as store:
        yield store


def keys(server: RedisServer) -> dict[bytes, int]:
    """All keys behind `BASE`, each with the milliseconds for which it is kept; -1: for ever."""
    names = server.ask("KEYS", "*")
    assert all(name.startswith(BASE) for name in names)
    return {name.removeprefix(BASE): server.ask("PTTL", name) for name in names}


def snapshot(server: RedisServer) -> dict[bytes, bytes]:
    return {name: server.ask("DUMP", name) for name in server.ask("KEYS", "*")}


def fail_over(server: RedisServer, to: dict[bytes, bytes]) -> None:
    """Put Redis back to what it was: a replica of Redis that had not heard of the last writes has taken over."""
    server.ask("FLUSHALL")
    for name, value in to.items():
        server.ask("RESTORE", name, 0, value)


# What is left in Redis


async def test_deleted_task_records_leave_no_redis_keys(store: RedisTaskStore, redis_server: RedisServer):
    await create(store, record("free"), ttl_ms=1, retention_ms=0)
    await create(store, record("held", holder="me"), ttl_ms=1, retention_ms=0)
    await create(store, record("external", is_external=True, scope="bob"), ttl_ms=1, retention_ms=0)
    await create(store, record("other tool", name="other"), ttl_ms=1, retention_ms=0)
    one = await create(store, record("ended", holder="me"), ttl_ms=1, retention_ms=0)
    assert await store.change(finished(one), expected_mark=one.mark, holder="me")
    taken = await claim(store, "you", names=("other",))
    assert await change(store, taken["other tool"], holder="you", give_up=True) is not None
    await create(store, record("gone"), ttl_ms=None)
    assert await store.discard("gone", retention_ms=HOUR)
    marker = await create(store, record("last"))
    await wait_past(store, marker, marker.created_at + 1)
    assert await store.expire(limit=9) == 5
    assert await store.discard("last", retention_ms=HOUR)
    assert keys(redis_server) == {}


async def test_redis_keys_of_a_task_expire_an_hour_after_its_ttl(store: RedisTaskStore, redis_server: RedisServer):
    await create(store, record("long", holder="me"), ttl_ms=HOUR, retention_ms=HOUR)
    await create(store, record("short", holder="me"), ttl_ms=0, retention_ms=0)
    assert await store.discard("never", retention_ms=HOUR) is False
    left = keys(redis_server)
    hours = {name: round(ttl / HOUR) for name, ttl in left.items()}
    others = {name: number for name, number in hours.items() if name not in (b"r:long", b"r:short", b"v:never")}
    assert (hours[b"r:long"], hours[b"r:short"], hours[b"v:never"]) == (3, 1, 2)
    assert set(others.values()) == {3}  # what names the records is kept as long as the last of them
    assert len(others) == 3


async def test_changed_ttl_of_a_task_changes_the_expiry_of_its_redis_keys(
    store: RedisTaskStore, redis_server: RedisServer
):
    one = await create(store, record("one"), ttl_ms=0, retention_ms=0)
    assert await change(store, one, kept_until=one.created_at + 4 * HOUR) is not None
    assert {round(ttl / HOUR) for ttl in keys(redis_server).values()} == {5}
    for_ever = await change(store, await read_record(store, "one"), kept_until=None)
    assert for_ever is not None
    assert set(keys(redis_server).values()) == {-1}
    assert await change(store, for_ever, kept_until=one.created_at + 2 * HOUR) is not None
    assert {round(ttl / HOUR) for ttl in keys(redis_server).values()} == {3}
    long_ago = await change(store, await read_record(store, "one"), kept_until=1)
    assert long_ago is not None
    assert await read_record(store, "one") == long_ago
    assert await store.expire(limit=9) == 1


@pytest.mark.parametrize("ttl", [None, 2**62])
async def test_task_record_without_a_ttl_never_expires(
    store: RedisTaskStore, redis_server: RedisServer, ttl: int | None
):
    await create(store, record("short"), ttl_ms=0, retention_ms=0)
    one = await create(store, record("one"), ttl_ms=ttl)
    await create(store, record("another"), ttl_ms=0, retention_ms=0)
    left = keys(redis_server)
    assert {name for name, ttl in left.items() if ttl == -1} == {*left} - {b"r:short", b"r:another"}
    await wait_past(store, one, one.created_at + 1)
    assert await store.expire(limit=9) == 2
    assert await store.page("ann", None, 9) == [one]


@pytest.mark.parametrize("secrets", [(), (SECRET,)])
async def test_redis_memory_of_a_task_record_is_limited(redis_server: RedisServer, secrets: tuple[bytes, ...]):
    """Beside the record itself, the time limits of three sorted sets and the hash; text of peers is in no key."""
    async with open_store(redis_server.url, secrets) as store:
        for number in range(200):
            await create(store, record(f"0123456789abcdefghijkl{number}", holder="a process:0123456789ab"))
        one = await store.page("ann", None, 1)
    used = sum(redis_server.ask("MEMORY", "USAGE", name, "SAMPLES", 0) for name in redis_server.ask("KEYS", "*"))
    assert used / 200 < one[0].size + 1600


async def test_task_store_skips_records_that_redis_evicted(store: RedisTaskStore, redis_server: RedisServer):
    """They count in no bound of a caller, either, and what names them is taken out."""
    for name in ("dropped", "here"):
        await create(store, record(name), ttl_ms=1, retention_ms=0)
    redis_server.ask("DEL", BASE + b"r:dropped")
    claimed = await claim(store, "me", lease_ms=1)
    assert set(claimed) == {"here"}
    one = await create(store, record("one", holder="me"), scope_limit=2)
    redis_server.ask("DEL", BASE + b"r:here")
    assert await store.page("ann", None, 1) == [one]
    await wait_past(store, one, claimed["here"].leased_until)
    assert await claim(store, "you") == {}
    assert await store.expire(limit=9) == 0
    assert await store.discard("one", retention_ms=HOUR)
    assert keys(redis_server) == {}


async def test_task_stores_with_different_redis_prefixes_share_no_tasks(store: RedisTaskStore, redis_url: str):
    await create(store, record("one"))
    async with open_store(redis_url, prefix=b"other") as other:
        assert await other.read(None, "one") is None
        assert await other.page("ann", None, 9) == []
        assert await claim(other, "me") == {}
        await create(other, record("one"), limit=1, scope_limit=1)


async def test_all_tasks_of_a_server_are_stored_on_one_node_of_a_redis_cluster(tmp_path: Path):
    """Scripts find keys that no caller has named: they have to be where the script runs."""
    with cluster_of(tmp_path, 3) as nodes:
        await until_whole(nodes)
        async with open_store(f"redis+cluster://127.0.0.1:{nodes[0].port}") as store:
            for number in range(9):
                await create(store, record(f"task {number}", name=f"tool {number}", scope=f"{number % 3}"))
            claimed = await claim(store, "me", names=[f"tool {number}" for number in range(9)])
            assert len(claimed) == 9
            assert set(await store.renew({**dict.fromkeys(claimed, "me"), "never": "me"}, lease_ms=HOUR)) == {"never"}
            assert len(await store.page("0", None, 9)) == 3
            one = claimed["task 0"]
            assert await change(store, one, holder="me", kept_until=1) is not None
            assert await store.expire(limit=9) == 1
            assert await store.discard("task 1", retention_ms=HOUR) is True
            assert len(await store.marks([*claimed])) == 7
            async with store.watch() as hints:
                await create(store, record("new"))
                with trio.fail_after(PATIENCE):
                    while await anext(hints) != "new":
                        pass
        sizes = [node.ask("DBSIZE") for node in nodes]
    assert sizes.count(0) == 2


# Losses


async def test_replica_cannot_write_to_a_task_if_redis_lost_its_claim_in_a_failover(
    store: RedisTaskStore, redis_server: RedisServer
):
    """A failover has lost the claim of ``old``, and ``new`` has claimed since: epoch and version are equal."""
    one = await create(store, record("one"))
    before = snapshot(redis_server)
    old = (await claim(store, "old"))["one"]
    fail_over(redis_server, before)
    new = (await claim(store, "new"))["one"]
    assert (old.epoch, old.version) == (new.epoch, new.version)
    assert await change(store, old, holder="old", message="stale") is None
    assert await change(store, attrs.evolve(old, mark=new.mark), holder="old", message="stale") is None
    assert not await store.change(finished(old), expected_mark=old.mark, holder="old")
    assert set(await store.renew({"one": "old"}, lease_ms=HOUR)) == {"one"}
    assert await change(store, one, message="stale") is None
    assert await read_record(store, "one") == new


async def test_task_write_computed_from_a_record_that_was_lost_in_a_failover_is_rejected(
    store: RedisTaskStore, redis_server: RedisServer
):
    """An answer of anybody, too, with the same version."""
    one = await create(store, record("one", holder="me"))
    before = snapshot(redis_server)
    lost = await change(store, one, message="lost")
    fail_over(redis_server, before)
    other = await change(store, one, message="other")
    assert lost is not None
    assert other is not None
    assert lost.version == other.version
    assert await change(store, lost, message="computed on the lost one") is None
    assert await change(store, lost, holder="me", message="computed on the lost one") is None
    assert await read_record(store, "one") == other


@pytest.mark.parametrize("is_first", [True, False])
async def test_task_creation_that_got_no_reply_can_be_undone_before_or_after_redis_runs_it(
    tmp_path: Path, is_first: bool
):
    """Redis is frozen, and carries out what waits there in any order: what was created is deleted, and what comes after
    the deletion is refused."""
    with RedisServer(tmp_path) as server:
        async with open_store(server.url, limit=0.2) as store, open_store(server.url, limit=PATIENCE) as other:
            await create(other, record("one"))  # Redis knows the script
            if not is_first:
                assert await store.discard("late", retention_ms=HOUR) is False
            server.stop()
            with pytest.raises(Uncertain):
                await create(store, record("late"))
            server.go_on()
            if is_first:
                assert await other.discard("late", retention_ms=HOUR) is True
            assert await other.read(None, "late") is None
            assert [each.id for each in await other.page("ann", None, 9)] == ["one"]


async def test_redis_at_maxmemory_never_applies_a_task_change_partially(
    store: RedisTaskStore, redis_server: RedisServer
):
    """What makes room still works, and so does the refusal of a creation that may be under way."""
    one = await create(store, record("one", holder="me"))
    gone = await create(store, record("gone", name="other"), ttl_ms=0, retention_ms=0)
    await wait_past(store, gone, gone.created_at)
    redis_server.ask("CONFIG", "SET", "maxmemory", 1)
    try:
        before = redis_server.ask("DEBUG", "DIGEST")
        for call in (
            create(store, record("two")),
            change(store, one, holder="me", message="new"),
            claim(store, "you", names=("other",)),
        ):
            with pytest.raises(StoreDown, match="OOM"):
                await call
        assert redis_server.ask("DEBUG", "DIGEST") == before
        assert await store.expire(limit=9) == 1
        assert await store.discard("one", retention_ms=HOUR) is True
        assert await store.discard("two", retention_ms=HOUR) is False
    finally:
        redis_server.ask("CONFIG", "SET", "maxmemory", 0)
    assert set(keys(redis_server)) == {b"v:two"}


# Secrets


async def test_task_claim_skips_records_that_the_secrets_of_the_store_cannot_decrypt(redis_url: str):
    async with open_store(redis_url, (SECRET,)) as store, open_store(redis_url, (OLDER,)) as other:
        await create(store, record("one"))
        await create(other, record("other"))
        async with open_store(redis_url) as plain:
            await create(plain, record("plain"))
            for each, name in ((store, "one"), (other, "other"), (plain, "plain")):
                assert [one.id for one in await each.page("ann", None, 9)] == [name]
                assert set(await claim(each, f"holder of {name}")) == {name}
            for each in (store, other):
                with pytest.raises(UnreadableRecord):
                    await each.read(None, "plain")


async def test_task_record_is_reencrypted_with_the_first_secret_at_its_next_change(
    redis_url: str, redis_server: RedisServer
):
    """Before and afterwards the record is listed, claimed and counted, and in one place alone."""
    async with open_store(redis_url, (OLDER,)) as old, open_store(redis_url, (SECRET, OLDER)) as both:
        one = await create(old, record("one", holder="me"))
        two = await create(both, record("two", holder="me"))
        with pytest.raises(StoreFull):
            await create(both, record("three"), scope_limit=2)
        assert [each.id for each in await both.page("ann", None, 9)] == ["one", "two"]
        moved = await change(both, one, holder="me", message="moved")
        assert moved is not None
        assert moved.leased_until == (await read_record(both, "one")).leased_until
        with pytest.raises(UnreadableRecord):
            await old.read(None, "one")
        async with open_store(redis_url, (SECRET,)) as new:
            assert list(await new.page("ann", None, 9)) == [moved, two]
            assert set(await new.renew({"one": "me", "two": "me"}, lease_ms=HOUR)) == set()
            assert await change(new, moved, holder="me", give_up=True) is not None
            assert set(await claim(new, "you")) == {"one"}
            for name in ("one", "two"):
                assert await new.discard(name, retention_ms=HOUR)
    assert keys(redis_server) == {}


async def test_damaged_task_record_is_logged_and_does_not_block_claims(
    store: RedisTaskStore, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    """The log says so, and the damaged one is not asked for again before its lease is over."""
    for name in ("damaged", "one"):
        await create(store, record(name))
    redis_server.ask("HSET", BASE + b"r:damaged", "b", b"\xff")
    assert set(await claim(store, "me")) == {"one"}
    assert "cannot be read" in caplog.text
    assert await claim(store, "you") == {}


async def test_encrypted_task_record_contains_no_plain_text_in_redis(redis_url: str, redis_server: RedisServer):
    async with open_store(redis_url, (SECRET,)) as store:
        await create(store, record("id", scope="scope of it", name="name of it", params=b"params of it"))
    names = b"".join(redis_server.ask("KEYS", "*"))
    contents = names + b"".join(redis_server.ask("HVALS", BASE + b"r:id"))
    for text in (b"scope of it", b"name of it", b"name of it".hex().encode(), b"params of it"):
        assert text not in contents


# Order


@pytest.mark.parametrize("position", [(10**5000, ""), (2**53, "x"), (2**62, "\ud800")])
async def test_task_list_page_after_an_unknown_position_is_empty(store: RedisTaskStore, position: tuple[int, str]):
    await create(store, record("one"))
    assert await store.page("ann", position, 9) == []


async def test_task_list_page_after_a_position_before_all_records_is_the_first_page(store: RedisTaskStore):
    one = await create(store, record("one"))
    assert await store.page("ann", (-(10**5000), "x"), 9) == [one]


async def test_task_records_with_equal_position_are_ordered_by_id(store: RedisTaskStore, redis_server: RedisServer):
    """Replicas with different secrets may give one place twice. Bytes decide, whatever the locale of Redis is."""
    names = ["B", "a", "aa", "\N{LATIN SMALL LETTER A WITH DIAERESIS}", "\N{SNOWMAN}"]
    place = (await create(store, record("z"))).position
    for name in reversed(names):
        await create(store, record(name))
        redis_server.ask("HSET", BASE + b"r:" + name.encode(), "p", place)
        redis_server.ask("ZADD", BASE + b"s:ann", place, name.encode())
    names.insert(3, "z")
    assert [each.id for each in await store.page("ann", None, 9)] == names
    for start, name in enumerate(names, 1):
        for most in (1, 9):
            page = await store.page("ann", (place, name), most)
            assert [each.id for each in page] == names[start:][:most]
    assert [each.id for each in await store.page("ann", (place, "ab"), 9)] == names[3:]


async def test_unclaimed_tasks_are_claimed_in_the_order_in_which_they_were_created_or_released(store: RedisTaskStore):
    """The one that was given up last is the last. A lease that is over comes behind."""
    late = await create(store, record("late", holder="dead"), lease_ms=0)
    for name in "zyx":
        one = await create(store, record(name))
        await wait_past(store, one, one.created_at)
    first = (await claim(store, "me", limit=1))["z"]
    assert await change(store, first, holder="me", give_up=True) is not None
    await wait_past(store, late, (await read_record(store, "z")).updated_at)
    claimed = [await claim(store, f"you {number}", limit=1) for number in range(4)]
    assert [list(each) for each in claimed] == [["y"], ["x"], ["z"], ["late"]]


# Several scripts in one call


async def test_large_task_records_are_returned_completely(store: RedisTaskStore):
    """More than a script returns at once."""
    for number in range(5):
        await create(store, record(f"task {number}", params=bytes(3 * 2**20)))
    names = [f"task {number}" for number in range(5)]
    assert [each.id for each in await store.page("ann", None, 5)] == names
    assert [each.id for each in await store.page("ann", None, 4)] == names[:4]
    assert set(await claim(store, "me")) == set(names)


@pytest.fixture
def small_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BATCH", "_CLAIMS", "_NAMES"):
        monkeypatch.setattr(task_store, name, 2)


@pytest.mark.usefixtures("small_scripts")
async def test_task_store_call_split_into_several_redis_scripts_has_the_effect_of_a_single_script(
    store: RedisTaskStore,
):
    names = [f"task {number}" for number in range(7)]
    for name in names:
        one = await create(store, record(name))
    assert [each.id for each in await store.page("ann", None, 6)] == names[:6]
    claimed = await claim(store, "me", limit=5)
    assert len(claimed) == 5
    assert set(await claim(store, "you")) == {*names} - {*claimed}
    assert set(await store.renew(dict.fromkeys(names, "me"), lease_ms=HOUR)) == {*names} - {*claimed}
    assert dict(await store.marks(names)) == {name: (await read_record(store, name)).mark for name in names}
    for name in names:
        one = await read_record(store, name)
        assert await change(store, one, kept_until=one.created_at) is not None
    await wait_past(store, one, one.created_at)
    assert [await store.expire(limit=5) for _ in range(3)] == [5, 2, 0]


@pytest.mark.usefixtures("small_scripts")
@pytest.mark.parametrize("how", ["claim", "renew", "expire"])
async def test_cancelled_task_store_call_that_runs_several_redis_scripts_takes_effect_fully_or_not_at_all(
    store: RedisTaskStore, how: str
):
    step = 1
    for at in interruptions():
        names = [f"{step} {number}" for number in range(5)]
        for name in names:
            await create(
                store, record(name, holder=None if how == "claim" else "me"), ttl_ms=0, retention_ms=0, lease_ms=HOUR
            )
        one = await read_record(store, names[-1])
        await wait_past(store, one, one.created_at)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "claim": lambda: claim(store, "me"),
            "renew": lambda: store.renew(dict.fromkeys(names, "me"), lease_ms=3 * HOUR),  # noqa: B023
            "expire": lambda: store.expire(limit=9),
        }
        returned = await at.call(calls[how])
        found = [await store.read(None, name) for name in names]
        done = {
            "claim": [each is not None and each.record.holder == "me" for each in found],
            "renew": [each is not None and each.record.leased_until > one.leased_until + HOUR for each in found],
            "expire": [each is None for each in found],
        }
        assert done[how] == [bool(returned)] * 5
        assert await store.expire(limit=99) >= 0
        step += 1
    assert step > 3


class BreakingLink:
    """A link that raises ``error`` from the second script on."""

    def __init__(self, link: Any, error: OSError) -> None:
        self.link = link
        self.error = error
        self.calls = 0

    async def script(self, *args: Any) -> Any:
        self.calls += 1
        if self.calls > 1:
            raise self.error
        return await self.link.script(*args)


@pytest.mark.usefixtures("small_scripts")
async def test_task_store_call_raises_an_uncertain_outcome_error_if_redis_fails_between_its_scripts(redis_url: str):
    """A part has happened, whatever the second script says; where the first one fails, nothing has."""
    async with open_store(redis_url) as store, open_reached(redis_url) as link:
        for number in range(5):
            await create(store, record(f"task {number}"))
        breaking = BreakingLink(link, StoreDown("no connection"))
        broken = RedisTaskStore(breaking, PREFIX, BUS, HintQueues())  # type: ignore[arg-type]
        with pytest.raises(Uncertain, match="a part"):
            await claim(broken, "me")
        assert len(await claim(store, "you")) == 3
        with pytest.raises(StoreDown):
            await claim(broken, "me")


# Round trips and hints


async def test_each_task_store_call_takes_one_redis_round_trip(redis_url: str):
    """A claim without anything to claim, and a renewal of hundreds, too."""
    async with open_reached(redis_url) as link:
        store = RedisTaskStore(link, PREFIX, BUS, HintQueues())
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: create(store, record("one", holder="me")),
            lambda: store.read("ann", "one"),
            lambda: change(store, record("one"), message="no"),
            lambda: store.page("ann", None, 50),
            lambda: claim(store, "you", names=("report", "other")),
            lambda: store.renew(dict.fromkeys(map(str, range(200)), "me"), lease_ms=HOUR),
            lambda: store.marks([str(number) for number in range(200)]),
            lambda: store.expire(limit=100),
            lambda: store.discard("one", retention_ms=HOUR),
        ]
        for call in calls:
            await call()  # Redis learns the script
        await store.discard("one", retention_ms=0)
        used = list[int]()
        for call in calls[1:]:
            before = link.round_trips
            await call()
            used.append(link.round_trips - before)
    assert used == [1] * 8


async def test_task_watcher_first_gets_a_report_of_lost_notifications_if_redis_is_not_subscribed_yet(redis_url: str):
    async with open_store(redis_url, hears=False) as store, store.watch() as hints:
        assert await anext(hints) is HINTS_LOST


async def test_task_watcher_can_start_while_redis_is_unavailable(tmp_path: Path):
    with RedisServer(tmp_path) as server:
        async with open_store(server.url) as store:
            server.kill()
            with trio.fail_after(PATIENCE):
                async with store.watch() as hints:
                    assert await anext(hints) is HINTS_LOST
