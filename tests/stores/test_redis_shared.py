"""The place in Redis leaves nothing behind, and lives through a Redis that is away, frozen, full or empty."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.stores.fault_proxy import FaultProxy, open_proxy
from tests.stores.redis_server import RedisServer

from trio_mcp.stores.redis.shared import Redis
from trio_mcp.stores.shared import Noted, Replica
from trio_mcp.stores.task_store import Gap, StoreDown, Uncertain, new_mark
from trio_mcp.testing.store_records import HOUR, create, record

PREFIX = b"trio-mcp:tested:1"


def keys(server: RedisServer) -> set[bytes]:
    """The names of all keys, without what they begin with."""
    names = server.ask("KEYS", "*")
    bare = {name.replace(b"{", b"").replace(b"}", b"") for name in names}
    assert all(name.startswith(PREFIX + b":") for name in bare)
    return {name.removeprefix(PREFIX + b":") for name in bare}


async def use_all(one: Replica, two: Replica) -> None:
    """Use each thing that replicas share."""
    mark = new_mark()
    await create(one.tasks, record("task"))
    await one.sessions.open("session", b"facts", mark=mark, idle=HOUR, most=9)
    assert await two.sessions.change("session", b"other", was=mark, mark=b"new", idle=HOUR)
    await one.sessions.read("session", idle=HOUR)
    for stream in ("one", "two"):
        await one.events.open("session", stream, holder="me", request_id=b"1", keep=HOUR)
        for first in (1, 4):
            await append(one, stream, first, [b"a", b"b", b"c"], most=10)
    await append(one, "one", 7, [b"end"], finish=True)
    await two.events.take("session", "own", holder="me", keep=HOUR)
    assert await two.events.finish_dead("session", "two", dead="me", line=b"dead", most=10, keep=HOUR)
    await two.events.after("session", "one", 0, keep=HOUR)
    await one.changes.note(["tools"])
    await two.changes.since(None)
    async with two.courier.mailbox() as letters:
        for letter in (b"short", bytes(100_000)):
            await one.courier.post(two.id, letter)
            assert await next_of(letters) == letter
    await one.courier.live(lease=HOUR)
    assert await two.courier.dead([one.id, two.id]) == {two.id}
    await one.seen.add(bytes(32), ttl=HOUR)
    assert await one.rates.take(b"caller", most=1, per=HOUR, burst=1) == 0
    assert await two.rates.take(b"caller", most=1, per=HOUR, burst=1) > 0


async def append(replica: Replica, stream: str, first: int, lines: list[bytes], **options: Any) -> bool:
    given: dict[str, Any] = {"holder": "me", "most": 1000, "keep": HOUR} | options
    return await replica.events.append("session", stream, first=first, lines=lines, **given)


async def next_of(hints: AsyncIterator[Any]) -> Any:
    with trio.fail_after(PATIENCE):
        return await anext(hints)


async def until_gap(hints: AsyncIterator[Any]) -> None:
    while not isinstance(await next_of(hints), Gap):
        pass


async def until_done(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make the call until the storage can be used."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                return await call()
            except (StoreDown, Uncertain):
                await trio.sleep(0.01)


@pytest.fixture
def place(redis_url: str) -> Redis:
    return Redis(redis_url, limit=10.0)


# What is kept, and for how long


async def test_each_key_but_the_secret_goes_by_itself(place: Redis, redis_server: RedisServer):
    async with place.join("tested") as one, place.join("tested") as two:
        await use_all(one, two)
        await one.courier.post("nobody", bytes(100_000))  # which nobody fetches
    forever = {name for name in redis_server.ask("KEYS", "*") if redis_server.ask("PTTL", name) == -1}
    assert forever == {PREFIX + b":secret"}
    assert len(keys(redis_server)) > 10


async def test_nothing_is_left_of_what_has_ended(place: Redis, redis_server: RedisServer):
    async with place.join("tested") as one, place.join("tested") as two:
        before = keys(redis_server)
        await use_all(one, two)
        await one.sessions.end("session")
        await one.events.forget("session")
        await one.tasks.void("task", keep=1)
        await one.courier.leave()
    left = {name for name in keys(redis_server) - before if name[:2] not in (b"b:", b"j:")}
    assert left == {b"c:log", b"c:things"}


async def test_nothing_is_left_of_what_nobody_uses(place: Redis, redis_server: RedisServer):
    async with place.join("tested") as one:
        before = keys(redis_server)
        await one.sessions.open("session", b"facts", mark=b"mark", idle=1, most=9)
        await one.seen.add(bytes(32), ttl=1)
        assert await one.rates.take(b"caller", most=1, per=1, burst=1) == 0
        await one.courier.live(lease=1)
        with trio.fail_after(PATIENCE):
            while keys(redis_server) - before != {b"s:sessions"}:
                await trio.sleep(0.01)
    assert 0 < redis_server.ask("PTTL", b"{%b:s}:sessions" % PREFIX) <= HOUR + 1


async def test_long_letter_is_taken_out_of_redis_by_its_reader(place: Redis, redis_server: RedisServer):
    async with place.join("tested") as one, one.courier.mailbox() as letters:
        before = keys(redis_server)
        await one.courier.post(one.id, bytes(100_000))
        assert await next_of(letters) == bytes(100_000)
        assert keys(redis_server) == before


async def test_long_letter_that_has_waited_too_long_is_a_gap(place: Redis, redis_server: RedisServer):
    async with place.join("tested") as one, one.courier.mailbox() as letters:
        await one.courier.post(one.id, bytes(100_000))
        for name in redis_server.ask("KEYS", "*:m:*"):
            redis_server.ask("DEL", name)
        await one.courier.post(one.id, b"next")
        assert isinstance(await next_of(letters), Gap)
        assert await next_of(letters) == b"next"


async def test_log_of_events_begins_anew_behind_one_that_is_gone(place: Redis, redis_server: RedisServer):
    """Its sets outlive it, and say nothing of the next."""
    async with place.join("tested") as one:
        await one.events.open("session", "old", holder="me", request_id=b"", keep=HOUR)
        assert await append(one, "old", 1, [b"a", b"b"])
        redis_server.ask("DEL", b"{%b:s}:log:session" % PREFIX)
        await one.events.open("session", "new", holder="me", request_id=b"", keep=HOUR)
        assert await append(one, "new", 1, [b"a", b"b", b"c"], most=2)
        found = await one.events.after("session", "new", 0, keep=HOUR)
        assert found is not None and (found.first, found.lines) == (2, [b"b", b"c"])


async def test_all_keys_and_channels_begin_with_the_prefix(redis_url: str, redis_server: RedisServer):
    """So an ACL can leave a deployment its own: this one allows no other, and use goes on."""
    rule = ["resetkeys", "~{mine:*", "~mine:*", "resetchannels", "&mine:*", "+@all", "nopass", "on"]
    redis_server.ask("ACL", "SETUSER", "replica", *rule)
    try:
        place = Redis(redis_url.replace("//", "//replica:any@"), prefix="mine", limit=10.0)
        async with place.join("tested") as one, place.join("tested") as two:
            await use_all(one, two)
    finally:
        redis_server.ask("ACL", "DELUSER", "replica")


async def test_servers_and_prefixes_share_nothing(redis_url: str, redis_server: RedisServer):
    """Whatever the names: none stands for another."""
    pairs = [("a", "b"), ("a", "b:1"), ("a:b", "1"), ("a", "{b}"), ("a", "B"), ("a", "*"), ("a", ""), ("", "a")]
    for prefix, name in pairs:
        async with Redis(redis_url, prefix=prefix, limit=10.0).join(name) as one:
            assert await one.seen.add(bytes(32), ttl=HOUR)
            await one.sessions.open("session", b"", mark=b"", idle=HOUR, most=1)
            assert not (await one.changes.since(None)).changed
            await one.changes.note([prefix + name])


def test_prefix_with_braces_is_refused():
    with pytest.raises(ValueError, match="no braces"):
        Redis("redis://127.0.0.1", prefix="a{b}")


async def test_cluster_has_all_that_is_shared(tmp_path: Path):
    """All keys of a script lie in one slot."""
    with RedisServer(tmp_path, "cluster-enabled yes") as server:
        server.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        with trio.fail_after(PATIENCE):
            while b"cluster_state:ok" not in server.ask("CLUSTER", "INFO"):
                await trio.sleep(0.01)
        place = Redis(server.url.replace("redis://", "redis+cluster://"), limit=10.0)
        async with place.join("tested") as one, place.join("tested") as two:
            await use_all(one, two)


# What it costs


async def test_each_call_is_one_round_trip(place: Redis, redis_server: RedisServer):
    """A long letter takes two, and one to fetch."""
    async with place.join("tested") as one, place.join("tested") as two:
        await use_all(one, two)  # Redis knows the scripts

        def count() -> int:
            statistics = redis_server.info("commandstats")
            names = ("evalsha", "eval", "set", "get", "mget", "del", "unlink", "publish", "getdel")
            calls = [statistics.get(f"cmdstat_{name}", "calls=0") for name in names]
            inside = sum(int(each.split(",")[0].removeprefix("calls=")) for each in calls)
            return inside

        calls: list[Callable[[], Awaitable[Any]]] = [
            partial(one.sessions.read, "nothing", idle=1),
            partial(one.sessions.end, "nothing"),
            partial(one.events.after, "session", "nothing", 0, keep=1),
            partial(one.events.forget, "nothing"),
            partial(one.changes.since, None),
            partial(one.courier.dead, ["a", "b"]),
            partial(one.seen.add, bytes(range(32)), ttl=1),
        ]
        for call in calls:
            before = count()
            await call()
            # `end` runs DEL in its script.
            assert count() - before == (2 if call is calls[1] else 1)


# The secret


async def test_replicas_have_one_secret(place: Redis):
    async with place.join("tested") as one:
        async with place.join("tested") as two, place.join("other") as other:
            assert one.secret == two.secret != other.secret
            assert len(one.secret) == 32
        secret = one.secret
    async with place.join("tested") as three:
        assert three.secret == secret


async def test_secret_is_put_back_into_a_redis_that_came_back_empty(tmp_path: Path):
    with RedisServer(tmp_path) as server:
        place = Redis(server.url, limit=10.0)
        async with place.join("tested") as one:
            server.restart()
            with trio.fail_after(PATIENCE):
                while server.ask("GET", PREFIX + b":secret") != one.secret:
                    await trio.sleep(0.01)
            async with place.join("tested") as two:
                assert two.secret == one.secret


async def test_log_says_that_there_are_two_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Once, however often it is looked at."""
    caplog.set_level(logging.ERROR)
    with RedisServer(tmp_path) as server:
        place = Redis(server.url, limit=10.0)
        async with place.join("tested") as one, one.changes.watch() as hints:
            server.kill()
            server.start()
            server.ask("SET", PREFIX + b":secret", bytes(32))
            await until_gap(hints)
            with trio.fail_after(PATIENCE):
                while not caplog.records:
                    await trio.sleep(0.01)
            assert one.secret != bytes(32)
            server.ask("CLIENT", "KILL", "TYPE", "pubsub")
            await until_gap(hints)
        assert [each.message for each in caplog.records] == [caplog.records[0].message]
        assert "another secret" in caplog.text


# A Redis that is not there yet


async def test_replica_waits_for_redis(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The log says so once, without credentials, and says when it is over."""
    with RedisServer(tmp_path, "user replica on >geheim ~* &* +@all") as server:
        url = server.url.replace("//", "//replica:geheim@")
        server.kill()
        joined = trio.Event()

        async def join() -> None:
            async with Redis(url, limit=0.2).join("tested") as one:
                await one.changes.note(["tools"])
                joined.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            with trio.fail_after(PATIENCE):
                while "waits until" not in caplog.text:
                    await trio.sleep(0.01)
                await trio.sleep(1.0)  # as long as it takes
                assert not joined.is_set()
                await trio.to_thread.run_sync(server.start)
                await joined.wait()
    told = [each.message for each in caplog.records]
    assert sum("waits until" in each for each in told) == 1
    assert sum("waits no longer" in each for each in told) == 1
    assert "geheim" not in caplog.text


async def test_waiting_for_redis_can_be_cancelled():
    with trio.move_on_after(0.1) as scope:
        async with Redis("redis://127.0.0.1:1").join("tested"):
            pass
    assert scope.cancelled_caught


async def test_policy_that_drops_keys_is_an_error_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with RedisServer(tmp_path, "maxmemory-policy allkeys-lru") as server:
        async with Redis(server.url, limit=10.0).join("tested"):
            assert "allkeys-lru, and has to be noeviction" in caplog.text
        caplog.clear()
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        async with Redis(server.url, limit=10.0).join("tested"):
            assert "noeviction" not in caplog.text


async def test_replica_that_may_not_ask_for_the_policy_runs(redis_url: str, redis_server: RedisServer):
    redis_server.ask("ACL", "SETUSER", "replica", "~*", "&*", "+@all", "-config", "nopass", "on")
    try:
        async with Redis(redis_url.replace("//", "//replica:any@"), limit=10.0).join("tested") as one:
            await one.changes.note(["tools"])
    finally:
        redis_server.ask("ACL", "DELUSER", "replica")


# A Redis that goes away


async def test_redis_that_came_back_empty_is_noticed(tmp_path: Path):
    """Sessions are gone, everything may have changed, watchers and mailboxes are told a gap; and all goes on."""
    with RedisServer(tmp_path) as server:
        async with (
            Redis(server.url, limit=10.0).join("tested") as one,
            one.sessions.watch() as sessions,
            one.events.watch() as events,
            one.changes.watch() as changes,
            one.tasks.watch() as tasks,
            one.courier.mailbox() as letters,
        ):
            await one.sessions.open("session", b"facts", mark=b"mark", idle=HOUR, most=9)
            await one.events.open("session", "stream", holder="me", request_id=b"1", keep=HOUR)
            await one.changes.note(["tools"])
            place = (await one.changes.since(None)).place
            server.kill()
            with pytest.raises((StoreDown, Uncertain)):
                await one.changes.note(["lost"])
            server.start()
            for each in (sessions, events, changes, tasks, letters):
                await until_gap(each)
            assert (await until_done(partial(one.changes.since, place))).everything
            assert await one.sessions.read("session", idle=HOUR) is None
            assert not await append(one, "stream", 1, [b"a"])
            assert await one.courier.live(lease=HOUR) is False
            await one.changes.note(["later"])
            while (hint := await next_of(changes)).changed != ["later"]:
                assert isinstance(hint, Noted)


async def test_frozen_redis_holds_up_no_call_beyond_the_limit(tmp_path: Path):
    """What was sent to it is uncertain; the rest is down; and it is used again without a restart."""
    with RedisServer(tmp_path) as server:
        async with Redis(server.url, limit=0.3).join("tested") as one:
            mark = new_mark()
            await until_done(partial(one.sessions.open, "session", b"old", mark=b"", idle=HOUR, most=9))
            server.stop()
            kinds = list[type[Exception]]()
            for _ in range(20):
                begun = trio.current_time()
                try:
                    await one.sessions.change("session", b"new", was=b"", mark=mark, idle=HOUR)
                except (StoreDown, Uncertain) as error:
                    kinds.append(type(error))
                assert trio.current_time() - begun < 5
            assert len(kinds) == 20
            assert kinds[0] is Uncertain and StoreDown in kinds
            server.go_on()
            assert await until_done(partial(one.changes.note, ["tools"])) is None
            found = await until_done(partial(one.sessions.read, "session", idle=HOUR))
            if found.mark != mark:  # nothing of what was sent has arrived, and no more will come that counts
                assert await one.sessions.change("session", b"new", was=b"", mark=mark, idle=HOUR)
            found = await one.sessions.read("session", idle=HOUR)
            assert (found.facts, found.mark) == (b"new", mark)


async def test_full_redis_changes_nothing_and_goes_on_reading(tmp_path: Path):
    with RedisServer(tmp_path, "maxmemory-policy noeviction") as server:
        async with Redis(server.url, limit=10.0).join("tested") as one:
            mark = new_mark()
            await one.sessions.open("session", b"old", mark=b"mark", idle=HOUR, most=9)
            await one.events.open("session", "stream", holder="me", request_id=b"1", keep=HOUR)
            assert await append(one, "stream", 1, [b"a", b"b"])
            await one.changes.note(["tools"])
            await one.courier.live(lease=HOUR)
            place = (await one.changes.since(None)).place
            server.ask("CONFIG", "SET", "maxmemory", 1)
            before = {name: server.ask("DUMP", name) for name in server.ask("KEYS", "*")}
            writes: list[Callable[[], Awaitable[Any]]] = [
                partial(one.sessions.open, "other", b"", mark=b"", idle=HOUR, most=9),
                partial(one.sessions.change, "session", b"new", was=b"mark", mark=mark, idle=HOUR),
                partial(one.events.open, "session", "other", holder="me", request_id=b"1", keep=HOUR),
                partial(one.events.open, "other", "other", holder="me", request_id=b"1", keep=HOUR),
                partial(one.events.take, "session", "stream", holder="you", keep=HOUR),
                partial(append, one, "stream", 3, [b"c"], most=2),
                partial(append, one, "stream", 3, [], note=b"note"),
                partial(append, one, "stream", 3, [], finish=True),
                partial(one.events.finish_dead, "session", "stream", dead="me", line=b"x", most=9, keep=HOUR),
                partial(one.changes.note, ["prompts"]),
                partial(one.courier.post, one.id, bytes(100_000)),
                partial(one.seen.add, bytes(32), ttl=HOUR),
                partial(one.rates.take, b"caller", most=1, per=HOUR, burst=1),
                partial(one.courier.live, lease=HOUR),
            ]
            for write in writes:
                with pytest.raises(StoreDown, match="OOM"):
                    await write()
            found = await one.sessions.read("session", idle=HOUR)
            assert found is not None and found.facts == b"old"
            events = await one.events.after("session", "stream", 0, keep=HOUR)
            assert events is not None and events.lines == [b"a", b"b"]
            assert not (await one.changes.since(place)).changed
            assert await one.courier.dead([one.id]) == set()
            assert await append(one, "stream", 1, [b"a"])
            after = {name: server.ask("DUMP", name) for name in server.ask("KEYS", "*")}
            assert {name for name in before | after if before.get(name) != after.get(name)} <= {
                b"{%b:s}:sessions" % PREFIX  # the session lasts longer
            }
            assert await one.sessions.end("session")
            await one.events.forget("session")
            server.ask("CONFIG", "SET", "maxmemory", 0)
            await one.changes.note(["prompts"])


# Calls whose fate is unknown


async def with_faults(
    server: RedisServer,
    attempt: Callable[[Replica, int], Awaitable[Any]],
    check: Callable[[Replica, int, bool], Awaitable[None]],
) -> None:
    """Make ``attempt``, behind a proxy that cuts or swallows the answer after each of its bytes, and then the request
    after some; ``check`` what is there, by another way. It gets the number of the attempt, and whether it returned."""
    number, ends = 0, list[str]()
    async with (
        open_proxy(server.port) as proxy,
        Redis(server.url, limit=10.0).join("tested") as other,
        Redis(proxy.url, limit=0.2).join("tested") as one,
    ):
        for kind, way, steps in (("cut", "answers", 5), ("swallow", "answers", 1), ("cut", "requests", 200)):
            for after in range(0, 5 * steps, steps):
                number += 1
                await until_up(one)
                end = await attempt_with(proxy, partial(attempt, one, number), kind, way, after)
                ends.append(end)
                await check(other, number, end == "returned")
    assert "uncertain" in ends


async def until_up(one: Replica) -> None:
    await until_done(partial(one.courier.dead, ["nobody"]))


async def attempt_with(proxy: FaultProxy, call: Callable[[], Awaitable[Any]], kind: Any, way: Any, after: int) -> str:
    fault = proxy.fail(kind, after=after, way=way)
    try:
        await call()
    except Uncertain:
        return "uncertain"
    except StoreDown:
        return "down"
    finally:
        if fault.happened.is_set():
            proxy.cut_all()  # no connection goes on behind bytes that were lost
        else:
            proxy.fail(kind, after=-1)
    return "returned"


async def test_uncertain_change_of_a_session_is_made_once(redis_server: RedisServer):
    """A reading shows whether it has happened, and the same call again makes it or is refused."""
    marks = dict[int, bytes]()

    async def attempt(one: Replica, number: int) -> None:
        marks[number] = new_mark()
        await one.sessions.change("session", b"%d" % number, was=b"was", mark=marks[number], idle=HOUR)

    async def check(other: Replica, number: int, returned: bool) -> None:
        found = await other.sessions.read("session", idle=HOUR)
        assert found is not None
        happened = found.mark == marks[number]
        assert happened or not returned
        again = await other.sessions.change("session", b"%d" % number, was=b"was", mark=marks[number], idle=HOUR)
        assert again is not happened
        found = await other.sessions.read("session", idle=HOUR)
        assert found is not None and (found.facts, found.mark) == (b"%d" % number, marks[number])
        assert await other.sessions.change("session", b"", was=marks[number], mark=b"was", idle=HOUR)

    async with Redis(redis_server.url, limit=10.0).join("tested") as one:
        await one.sessions.open("session", b"", mark=b"was", idle=HOUR, most=9)
    await with_faults(redis_server, attempt, check)


async def test_uncertain_append_is_made_once(redis_server: RedisServer):
    """The same call again leaves each line once."""

    async def attempt(one: Replica, number: int) -> None:
        await append(one, "stream", 2 * number - 1, [b"%d a" % number, b"%d b" % number], note=b"%d" % number)

    async def check(other: Replica, number: int, returned: bool) -> None:
        found = await other.events.after("session", "stream", 2 * number - 2, keep=HOUR)
        assert found is not None
        lines = [b"%d a" % number, b"%d b" % number]
        assert found.lines == lines or (not returned and not found.lines)
        assert await append(other, "stream", 2 * number - 1, lines, note=b"%d" % number)
        found = await other.events.after("session", "stream", 2 * number - 2, keep=HOUR)
        assert found is not None and (found.lines, found.stream.note) == (lines, b"%d" % number)

    async with Redis(redis_server.url, limit=10.0).join("tested") as one:
        await one.events.open("session", "stream", holder="me", request_id=b"", keep=HOUR)
    await with_faults(redis_server, attempt, check)


async def test_uncertain_note_is_told_at_least_once(redis_server: RedisServer):
    """Noted again, a thing is there once."""
    places = dict[int, str]()

    async def attempt(one: Replica, number: int) -> None:
        await one.changes.note([f"thing {number}"])

    async def check(other: Replica, number: int, returned: bool) -> None:
        found = await other.changes.since(places[number])
        assert found.changed == [f"thing {number}"] or (not returned and not found.changed)
        await other.changes.note([f"thing {number}"])
        found = await other.changes.since(places[number])
        assert (found.changed, found.everything) == ([f"thing {number}"], False)
        places[number + 1] = found.place

    async with Redis(redis_server.url, limit=10.0).join("tested") as one:
        places[1] = (await one.changes.since(None)).place
    await with_faults(redis_server, attempt, check)


async def test_uncertain_value_counts_as_used(redis_server: RedisServer):
    """Nobody else uses it afterwards, if it was added, and one may if it was not."""

    async def attempt(one: Replica, number: int) -> None:
        assert await one.seen.add(b"%032d" % number, ttl=HOUR)

    async def check(other: Replica, number: int, returned: bool) -> None:
        key = b"%b:j:%b" % (PREFIX, (b"%032d" % number).hex().encode())
        was_there = bool(redis_server.ask("EXISTS", key))
        assert was_there or not returned
        assert await other.seen.add(b"%032d" % number, ttl=HOUR) is not was_there
        assert not await other.seen.add(b"%032d" % number, ttl=HOUR)

    await with_faults(redis_server, attempt, check)


# Changes, and hints


async def test_change_behind_a_failover_that_lost_the_last_ones_is_not_missed(place: Redis, redis_server: RedisServer):
    """As many are noted as were lost, and a reader who has seen those is told."""
    async with place.join("tested") as one:
        await one.changes.note(["before"])
        kept = {name: redis_server.ask("DUMP", name) for name in redis_server.ask("KEYS", "*")}
        await one.changes.note(["lost"])
        seen = (await one.changes.since(None)).place
        for name, value in kept.items():
            redis_server.ask("RESTORE", name, 0, value, "REPLACE")
        assert (await one.changes.since(seen)).everything
        await one.changes.note(["new"])
        assert (await one.changes.since(seen)).changed == ["new"]


async def test_hint_with_too_much_to_tell_is_a_gap(place: Redis):
    async with place.join("tested") as one, one.changes.watch() as hints:
        start = (await one.changes.since(None)).place
        things = [f"resource:{number:01000}" for number in range(100)]
        await one.changes.note(things)
        assert isinstance(await next_of(hints), Gap)
        assert sorted((await one.changes.since(start)).changed) == things


async def test_hints_of_others_make_gaps_or_nothing(place: Redis, redis_server: RedisServer):
    """Those that are of a version to come are ignored; those that make no sense may have meant anything."""
    async with place.join("tested") as one, one.sessions.watch() as hints:
        bus = PREFIX + b":bus"
        for message in (b"", b"unknown", b"sknown"):
            assert redis_server.ask("PUBLISH", bus, message) > 0
        assert await next_of(hints) == "known"
        for message in (b"s\xff", b"l", b"lx:", b"c", b"ca b \xc1"):
            redis_server.ask("PUBLISH", bus, message)
            assert isinstance(await next_of(hints), Gap)
        redis_server.ask("PUBLISH", bus, b"sknown")
        assert await next_of(hints) == "known"


async def test_bucket_of_a_clock_that_was_set_back_is_only_empty(place: Redis, redis_server: RedisServer):
    """It gets tokens as any other does."""
    async with place.join("tested") as one:
        assert await one.rates.take(b"caller", most=1, per=HOUR, burst=5) == 0
        (key,) = redis_server.ask("KEYS", "*:b:*")
        redis_server.ask("SET", key, 10**18)
        assert HOUR - 60_000 < await one.rates.take(b"caller", most=1, per=HOUR, burst=5) <= HOUR
