"""The storage in Redis keeps what it has to, for as long as it has to, under names of its own."""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.fleet.redis_server import RedisServer
from tests.fleet.redis_use import PREFIX, append, keys, next_of, until, until_gap, use_all
from tests.fleet.test_replicated_notifications import Grown, grown
from tests.fleet.test_replicated_notifications import running as replicas_that_tell
from tests.patience import PATIENCE

from trio_mcp.fleet.messenger import Messenger
from trio_mcp.fleet.storage.redis import storage as shared
from trio_mcp.fleet.storage.redis.link import open_link
from trio_mcp.fleet.storage.redis.storage import RedisStorage, _SharedSecret
from trio_mcp.stores.shared import Replica
from trio_mcp.stores.task_store import HintsLost
from trio_mcp.testing.stores.task_store_records import HOUR


def short_name(caller: bytes) -> bytes:
    """The name of a caller in keys."""
    return hashlib.blake2b(caller, digest_size=16).hexdigest().encode()


@pytest.fixture
def storage(redis_url: str) -> RedisStorage:
    return RedisStorage(redis_url, limit=10.0)


# What is kept, and for how long


async def test_every_redis_key_except_the_secret_expires(storage: RedisStorage, redis_server: RedisServer):
    async with storage.join("tested") as one, storage.join("tested") as two:
        await use_all(one, two)
        await one.courier.send("nobody", bytes(100_000))  # which nobody fetches
    forever = {name for name in redis_server.ask("KEYS", "*") if redis_server.ask("PTTL", name) == -1}
    assert forever == {PREFIX + b":secret"}
    assert len(keys(redis_server)) > 10


async def test_deleted_sessions_streams_and_tasks_leave_no_redis_keys(storage: RedisStorage, redis_server: RedisServer):
    async with storage.join("tested") as one, storage.join("tested") as two:
        before = keys(redis_server)
        await use_all(one, two)
        await one.sessions.delete("session")
        await one.events.delete("session")
        assert two.state is not None
        await two.state.delete("caller")
        await one.tasks.discard("task", retention_ms=1)
        await one.courier.leave()
    left = {name for name in keys(redis_server) - before if name[:2] not in (b"b:", b"j:")}
    assert left == {b"c:log", b"c:things"}


async def test_redis_keys_of_unused_sessions_and_limits_expire(storage: RedisStorage, redis_server: RedisServer):
    async with storage.join("tested") as one:
        before = keys(redis_server)
        await one.sessions.open("session", b"facts", caller=b"ann", mark=b"mark", idle_ms=1, limit=9)
        await one.replay_guard.add(bytes(32), ttl_ms=1)
        assert await one.rate_limits.acquire(b"caller", limit=1, period_ms=1, burst=1) == 0
        await one.courier.heartbeat(lease_ms=1)
        left = {b"s:sessions", b"s:callers", b"s:sessions:" + short_name(b"ann")}
        await until(lambda: keys(redis_server) - before == left)
    for name in left:
        assert 0 < redis_server.ask("PTTL", b"{%b:s}:%b" % (PREFIX, name[2:])) <= HOUR + 1


async def test_large_message_between_replicas_is_deleted_from_redis_when_the_receiver_has_read_it(
    storage: RedisStorage, redis_server: RedisServer
):
    async with storage.join("tested") as one, one.courier.mailbox() as letters:
        before = keys(redis_server)
        await one.courier.send(one.id, bytes(100_000))
        assert await next_of(letters) == bytes(100_000)
        assert keys(redis_server) == before


async def test_large_message_that_one_replica_sends_twice_is_stored_once_in_redis(
    storage: RedisStorage, redis_server: RedisServer
):
    async with storage.join("tested") as one, storage.join("tested") as two:
        before = keys(redis_server)
        for sender in (one, two):
            with trio.move_on_after(3):
                await Messenger(sender).send("nobody", "kind", bytes(100_000), patience=PATIENCE)
        assert len(keys(redis_server) - before) == 2 + 1  # and a list with the names of both
        (listed,) = (name for name in redis_server.ask("KEYS", "*") if name.endswith(b":listed"))
        assert redis_server.ask("ZCARD", listed) == 2


async def test_replica_reports_lost_messages_if_a_large_message_expires_unread(
    storage: RedisStorage, redis_server: RedisServer
):
    async with storage.join("tested") as one, one.courier.mailbox() as letters:
        await one.courier.send(one.id, bytes(100_000))
        for name in redis_server.ask("KEYS", "*:m:*"):
            redis_server.ask("DEL", name)
        await one.courier.send(one.id, b"next")
        assert isinstance(await next_of(letters), HintsLost)
        assert await next_of(letters) == b"next"


async def test_sec_replica_that_receives_a_forged_message_deletes_no_unrelated_redis_keys(
    storage: RedisStorage, redis_server: RedisServer
):
    """Neither the common secret nor the letter of another replica, whatever the message names."""
    async with (
        storage.join("tested") as one,
        storage.join("tested") as two,
        one.courier.mailbox() as letters,
    ):
        await use_all(one, two)
        await two.courier.send("nobody", bytes(100_000), number=7)
        redis_server.ask("SET", "other", "by others")
        before = set(redis_server.ask("KEYS", "*"))
        channel = PREFIX + b":r:" + one.id.encode()
        names = [*before, f"{two.id}.7".encode(), b"../secret", b"}:secret", b"", b"*", PREFIX + b":secret"]
        for name in names:
            assert redis_server.ask("PUBLISH", channel, b"k" + name) == 1
            assert isinstance(await next_of(letters), HintsLost)
        redis_server.ask("ZADD", b"{%b}:listed" % channel, 10**15, b"k" + PREFIX + b":secret")
        await one.courier.send(one.id, bytes(5_000))
        assert await next_of(letters) == bytes(5_000)
        assert set(redis_server.ask("KEYS", "*")) - {b"{%b}:listed" % channel} == before


async def test_new_event_log_ignores_data_left_by_an_expired_event_log(
    storage: RedisStorage, redis_server: RedisServer
):
    """Its sets outlive it, and say nothing of the next."""
    async with storage.join("tested") as one:
        await one.events.open("session", "first", holder="me", request_id=b"", retention_ms=HOUR)
        assert await append(one, "first", 1, [b"a", b"b"])
        redis_server.ask("DEL", b"{%b:s}:log:session" % PREFIX)
        await one.events.open("session", "second", holder="me", request_id=b"", retention_ms=HOUR)
        assert await append(one, "second", 1, [b"a", b"b", b"c"], limit=2)
        found = await one.events.read_after("session", "second", 0, retention_ms=HOUR)
        assert found is not None
        assert (found.first, found.lines) == (2, [b"b", b"c"])


async def test_deleted_event_stream_leaves_no_redis_keys(storage: RedisStorage, redis_server: RedisServer):
    """Whether somebody asks for it, or another stream is finished."""

    async def finish(one: Replica, stream: str, keep: int) -> None:
        await one.events.open("session", stream, holder="me", request_id=b"", retention_ms=keep)
        assert await append(one, stream, 1, [b"a", b"b", b"c"], retention_ms=keep, finish=True)

    async with storage.join("tested") as one:
        for is_asked_for in (True, False):
            await finish(one, "over", 200)
            await one.events.open("session", "lasts", holder="me", request_id=b"", retention_ms=HOUR)
            number = 0
            while redis_server.ask("HEXISTS", b"{%b:s}:log:session" % PREFIX, b"sover"):
                number += 1
                if is_asked_for:
                    await one.events.read_after("session", "over", 0, retention_ms=HOUR)
                else:
                    await finish(one, f"other {number}", HOUR)
                await trio.sleep(0.05)
            of_others = 0 if is_asked_for else number
            assert redis_server.ask("ZCARD", b"{%b:s}:older:session" % PREFIX) == 2 * of_others
            assert redis_server.ask("ZCARD", b"{%b:s}:newest:session" % PREFIX) == of_others
            assert redis_server.ask("ZCARD", b"{%b:s}:finished:session" % PREFIX) == of_others
            assert await append(one, "lasts", 1, [b"a", b"b", b"c"], limit=2 + of_others)
            found = await one.events.read_after("session", "lasts", 0, retention_ms=HOUR)
            assert found is not None
            assert (found.first, found.lines) == (2, [b"b", b"c"])
            await one.events.delete("session")


@pytest.mark.parametrize("is_asked_for", [True, False], ids=["when asked for", "when others are finished"])
async def test_event_stream_with_many_events_is_deleted_in_several_redis_calls(
    storage: RedisStorage, redis_server: RedisServer, is_asked_for: bool
):
    """So that no step holds up the others. The stream is gone with the first step, and all of it in the end."""
    log, older, size = b"{%b:s}:log:session" % PREFIX, b"{%b:s}:older:session" % PREFIX, 20_000
    async with storage.join("tested") as one:
        await finish_many(one, size)
        left = size - 1
        for step in itertools.count():
            if is_asked_for:
                assert await one.events.read_after("session", "over", 0, retention_ms=HOUR) is None
            else:
                await one.events.open("session", f"{step}", holder="me", request_id=b"", retention_ms=HOUR)
                assert await append(one, f"{step}", 1, [], finish=True, limit=size)
            before, left = left, redis_server.ask("ZCARD", older)
            assert left == max(before - 1000, 0)
            if not redis_server.ask("HEXISTS", log, b"sover"):
                break
        assert redis_server.ask("HGET", log, b"size") == b"0"
        assert redis_server.ask("ZCARD", b"{%b:s}:newest:session" % PREFIX) == 0
        assert not [each for each in redis_server.ask("HKEYS", log) if each.startswith(b"l")]


async def test_partly_deleted_event_stream_can_be_reopened(storage: RedisStorage, redis_server: RedisServer):
    async with storage.join("tested") as one:
        await finish_many(one, 5000)
        assert await one.events.read_after("session", "over", 0, retention_ms=HOUR) is None
        await one.events.open("session", "over", holder="me", request_id=b"", retention_ms=HOUR)
        assert await append(one, "over", 1, [b"b"])
        found = await one.events.read_after("session", "over", 0, retention_ms=HOUR)
        assert found is not None
        assert found.lines == [b"b"]
        assert redis_server.ask("HGET", b"{%b:s}:log:session" % PREFIX, b"size") == b"1"


async def finish_many(one: Replica, count: int) -> None:
    """Finish a stream with many events, and wait until its time is over."""
    await one.events.open("session", "over", holder="me", request_id=b"", retention_ms=HOUR)
    assert await append(one, "over", 1, [b"a"] * count, limit=count, retention_ms=2000, finish=True)
    await one.events.open("session", "lasts", holder="me", request_id=b"", retention_ms=HOUR)
    await trio.sleep(2.1)


async def test_event_log_reads_tens_of_thousands_of_events_in_one_call(storage: RedisStorage):
    """Lua has less room for arguments."""
    async with storage.join("tested") as one:
        await one.events.open("session", "stream", holder="me", request_id=b"", retention_ms=HOUR)
        lines = [b"%d" % number for number in range(20_000)]
        assert await append(one, "stream", 1, lines, limit=10**6)
        found = await one.events.read_after("session", "stream", 0, retention_ms=HOUR)
        assert found is not None
        assert found.lines == lines


async def test_all_redis_keys_and_channels_begin_with_the_prefix(redis_url: str, redis_server: RedisServer):
    """So an ACL can leave a deployment its own: this one allows no other, and use goes on."""
    rule = ["resetkeys", "~{mine:*", "~mine:*", "resetchannels", "&mine:*", "+@all", "nopass", "on"]
    redis_server.ask("ACL", "SETUSER", "replica", *rule)
    try:
        storage = RedisStorage(redis_url.replace("//", "//replica:any@"), prefix="mine", limit=10.0)
        async with storage.join("tested") as one, storage.join("tested") as two:
            await use_all(one, two)
    finally:
        redis_server.ask("ACL", "DELUSER", "replica")


async def test_storages_with_different_server_names_or_different_redis_prefixes_share_no_data(
    redis_url: str, redis_server: RedisServer
):
    """Whatever the names: none stands for another."""
    pairs = [("a", "b"), ("a", "b:1"), ("a:b", "1"), ("a", "{b}"), ("a", "B"), ("a", "*"), ("a", ""), ("", "a")]
    for prefix, name in pairs:
        async with RedisStorage(redis_url, prefix=prefix, limit=10.0).join(name) as one:
            assert await one.replay_guard.add(bytes(32), ttl_ms=HOUR)
            await one.sessions.open("session", b"", caller=b"ann", mark=b"", idle_ms=HOUR, limit=1)
            assert not (await one.changes.read_since(None)).changed
            await one.changes.record([prefix + name])


def test_redis_prefix_with_braces_raises_value_error():
    with pytest.raises(ValueError, match="must not contain"):
        RedisStorage("redis://127.0.0.1", prefix="a{b}")


async def test_all_shared_storage_operations_succeed_on_a_redis_cluster(tmp_path: Path):
    """All keys of a script lie in one slot."""
    with RedisServer(tmp_path, "cluster-enabled yes") as server:
        server.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await until(lambda: b"cluster_state:ok" in server.ask("CLUSTER", "INFO"))
        storage = RedisStorage(server.url.replace("redis://", "redis+cluster://"), limit=10.0)
        async with storage.join("tested") as one, storage.join("tested") as two:
            await use_all(one, two)


# What it costs


async def test_each_shared_storage_call_takes_one_redis_round_trip(storage: RedisStorage, redis_server: RedisServer):
    """A long letter takes two, and one to fetch."""
    async with storage.join("tested") as one, storage.join("tested") as two:
        await use_all(one, two)  # Redis knows the scripts
        assert not await one.sessions.delete("nothing")

        def count() -> int:
            statistics = redis_server.info("commandstats")
            names = ("evalsha", "eval", "set", "get", "mget", "del", "unlink", "publish", "getdel")
            calls = [statistics.get(f"cmdstat_{name}", "calls=0") for name in names]
            return sum(int(each.split(",")[0].removeprefix("calls=")) for each in calls)

        calls: list[Callable[[], Awaitable[Any]]] = [
            partial(one.sessions.read, "nothing", idle_ms=1),
            partial(one.sessions.delete, "nothing"),
            partial(one.events.read_after, "session", "nothing", 0, retention_ms=1),
            partial(one.events.delete, "nothing"),
            partial(one.changes.read_since, None),
            partial(one.courier.find_dead, ["a", "b"]),
            partial(one.replay_guard.add, bytes(range(32)), ttl_ms=1),
        ]
        for call in calls:
            before = count()
            await call()
            assert count() - before == 1


def commands(server: RedisServer) -> int:
    """The number of commands so far, those of scripts among them."""
    statistics = server.info("commandstats")
    return sum(int(each.split(",")[0].removeprefix("calls=")) for each in statistics.values())


async def test_opening_a_session_takes_few_redis_commands_even_with_many_expired_sessions(
    storage: RedisStorage, redis_server: RedisServer
):
    """What has ended goes a part at a time."""
    async with storage.join("tested") as one:

        async def open_session(name: str, caller: bytes, idle: int) -> int:
            """Return how many commands that took."""
            before = commands(redis_server)
            await one.sessions.open(name, b"facts", caller=caller, mark=b"mark", idle_ms=idle, limit=10_000)
            return commands(redis_server) - before

        assert await open_session("first", b"ann", HOUR) < 40
        for number in range(600):
            await open_session(f"{number}", b"%d" % (number % 150), 100)
            if number % 2:
                await one.sessions.read(f"{number}", idle_ms=100)
        await until(lambda: not redis_server.ask("KEYS", "*:s:5*"))
        counts = [await open_session(f"late {number}", b"bob", HOUR) for number in range(5)]
        assert max(counts) < 1000
        assert counts[-1] < 40
        tag = b"{%b:s}" % PREFIX
        assert redis_server.ask("ZCARD", tag + b":sessions") == 6
        assert set(redis_server.ask("ZRANGE", tag + b":callers", 0, -1)) == {short_name(b"ann"), short_name(b"bob")}


async def test_new_session_can_be_opened_even_if_redis_lost_the_session_index_of_a_caller(
    storage: RedisStorage, redis_server: RedisServer
):
    """A failover may lose what was written last."""
    async with storage.join("tested") as one:
        for name, caller in (
            ("a", b"ann"),
            ("b", b"ann"),
            ("c", b"ann"),
            ("d", b"bob"),
            ("e", b"bob"),
            ("f", b"carol"),
        ):
            await one.sessions.open(name, b"facts", caller=caller, mark=b"mark", idle_ms=HOUR, limit=100)
        redis_server.ask("DEL", b"{%b:s}:sessions:%b" % (PREFIX, short_name(b"ann")))
        assert await one.sessions.open("g", b"", caller=b"dave", mark=b"mark", idle_ms=HOUR, limit=6) == "d"
        assert await one.sessions.read("a", idle_ms=HOUR) is not None
        assert redis_server.ask("ZSCORE", b"{%b:s}:callers" % PREFIX, short_name(b"ann")) == b"1"


async def test_session_stored_by_an_earlier_version_without_caller_is_treated_as_ended(
    storage: RedisStorage, redis_server: RedisServer
):
    session = b"{%b:s}:s:old" % PREFIX
    redis_server.ask("HSET", session, "facts", "facts", "mark", "mark")
    async with storage.join("tested") as one:
        assert await one.sessions.read("old", idle_ms=HOUR) is None
        assert not await one.sessions.change("old", b"new", expected_mark=b"mark", mark=b"other", idle_ms=HOUR)
        assert await one.sessions.delete("old")
        assert not redis_server.ask("EXISTS", session)


# The secret


async def test_replicas_with_the_same_server_name_share_one_secret(storage: RedisStorage):
    async with storage.join("tested") as one:
        async with storage.join("tested") as two, storage.join("other") as other:
            assert one.secret == two.secret != other.secret
            assert len(one.secret) == 32
        secret = one.secret
    async with storage.join("tested") as three:
        assert three.secret == secret


@pytest.mark.parametrize("value", [b"", b"x", bytes(31), bytes(33), b"\xff" * 10**6])
async def test_sec_secret_of_an_invalid_length_in_redis_is_replaced_for_all_replicas(
    storage: RedisStorage, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, value: bytes
):
    """Whoever else has put it there: no replica starts with less than a whole secret."""
    monkeypatch.setattr(shared, "_CHECK_INTERVAL", 0.05)
    redis_server.ask("SET", PREFIX + b":secret", value)
    async with storage.join("tested") as one, storage.join("tested") as two:
        assert one.secret == two.secret == redis_server.ask("GET", PREFIX + b":secret")
        assert len(one.secret) == 32
        redis_server.ask("SET", PREFIX + b":secret", value)
        await until(lambda: redis_server.ask("GET", PREFIX + b":secret") == one.secret)


async def test_shared_secret_is_restored_if_redis_restarts_empty(tmp_path: Path):
    with RedisServer(tmp_path) as server:
        storage = RedisStorage(server.url, limit=10.0)
        async with storage.join("tested") as one:
            server.restart()
            await until(lambda: server.ask("GET", PREFIX + b":secret") == one.secret)
            async with storage.join("tested") as two:
                assert two.secret == one.secret


async def test_shared_secret_is_restored_after_a_redis_flush(
    storage: RedisStorage, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """No connection is lost then, so it is looked at from time to time."""
    monkeypatch.setattr(shared, "_CHECK_INTERVAL", 0.05)
    async with storage.join("tested") as one:
        redis_server.ask("FLUSHALL")
        await until(lambda: redis_server.ask("GET", PREFIX + b":secret") == one.secret)


async def test_replica_logs_once_that_redis_has_a_different_shared_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Once, however often it is looked at."""
    caplog.set_level(logging.ERROR)
    with RedisServer(tmp_path) as server:
        storage = RedisStorage(server.url, limit=10.0)
        async with storage.join("tested") as one, one.changes.watch() as hints:
            server.kill()
            server.start()
            server.ask("SET", PREFIX + b":secret", bytes(32))
            await until_gap(hints)
            await until(lambda: bool(caplog.records))
            assert one.secret != bytes(32)
            looks = server.info("commandstats")["cmdstat_get"]
            server.ask("CLIENT", "KILL", "TYPE", "pubsub")
            await until(lambda: server.info("commandstats")["cmdstat_get"] != looks)
        assert [each.message for each in caplog.records] == [caplog.records[0].message]
        assert "another secret" in caplog.text


# A Redis that is not there yet


async def test_replica_that_starts_waits_for_redis_and_logs_the_wait_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The log says so once, without credentials, and says when it is over."""
    with RedisServer(tmp_path, "user replica on >geheim ~* &* +@all") as server:
        url = server.url.replace("//", "//replica:geheim@")
        server.kill()
        joined = trio.Event()

        async def join() -> None:
            async with RedisStorage(url, limit=0.2).join("tested") as one:
                await one.changes.record(["tools"])
                joined.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            await until(lambda: "waits until" in caplog.text)
            await trio.sleep(1.0)  # as long as it takes
            assert not joined.is_set()
            await trio.to_thread.run_sync(server.start)
            with trio.fail_after(PATIENCE):
                await joined.wait()
    told = [each.message for each in caplog.records]
    assert sum("waits until" in each for each in told) == 1
    assert sum("no longer waits" in each for each in told) == 1
    assert "geheim" not in caplog.text


async def test_replica_that_starts_slowly_logs_no_outage_if_redis_is_available(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with RedisServer(tmp_path) as server:
        async with open_link(server.url, limit=PATIENCE) as link:
            await _SharedSecret(link, "secret").agree(patience=0.0)
    assert caplog.records == []


async def test_replica_that_waits_for_redis_at_start_can_be_cancelled():
    with trio.move_on_after(0.1) as scope:
        async with RedisStorage("redis://127.0.0.1:1").join("tested"):
            pass
    assert scope.cancelled_caught


async def test_replica_logs_an_error_if_the_redis_memory_policy_evicts_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with RedisServer(tmp_path, "maxmemory-policy allkeys-lru") as server:
        async with RedisStorage(server.url, limit=10.0).join("tested"):
            assert "must be noeviction, not allkeys-lru" in caplog.text
        caplog.clear()
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        async with RedisStorage(server.url, limit=10.0).join("tested"):
            assert "noeviction" not in caplog.text


async def test_replica_starts_without_permission_to_read_the_redis_memory_policy(
    redis_url: str, redis_server: RedisServer
):
    redis_server.ask("ACL", "SETUSER", "replica", "~*", "&*", "+@all", "-config", "nopass", "on")
    try:
        async with RedisStorage(redis_url.replace("//", "//replica:any@"), limit=10.0).join("tested") as one:
            await one.changes.record(["tools"])
    finally:
        redis_server.ask("ACL", "DELUSER", "replica")


# Changes, and hints


async def test_replica_misses_no_change_after_a_redis_failover_that_lost_writes(
    storage: RedisStorage, redis_server: RedisServer
):
    """As many are noted as were lost, and a reader who has seen those is told."""
    async with storage.join("tested") as one:
        await one.changes.record(["before"])
        kept = {name: redis_server.ask("DUMP", name) for name in redis_server.ask("KEYS", "*")}
        await one.changes.record(["lost"])
        seen = (await one.changes.read_since(None)).cursor
        for name, value in kept.items():
            redis_server.ask("RESTORE", name, 0, value, "REPLACE")
        assert (await one.changes.read_since(seen)).everything
        await one.changes.record(["new"])
        assert (await one.changes.read_since(seen)).changed == ["new"]


async def test_replica_receives_a_report_of_lost_notifications_if_a_change_notification_is_too_large(
    storage: RedisStorage,
):
    async with storage.join("tested") as one, one.changes.watch() as hints:
        start = (await one.changes.read_since(None)).cursor
        things = [f"resource:{number:01000}" for number in range(100)]
        await one.changes.record(things)
        assert isinstance(await next_of(hints), HintsLost)
        assert sorted((await one.changes.read_since(start)).changed) == things


async def test_replica_ignores_pubsub_messages_of_unknown_kinds_and_reports_malformed_messages_as_lost(
    storage: RedisStorage, redis_server: RedisServer
):
    """Those that are of a version to come are ignored; those that make no sense may have meant anything."""
    async with storage.join("tested") as one, one.sessions.watch() as hints:
        bus = PREFIX + b":bus"
        for message in (b"", b"unknown", b"sknown"):
            assert redis_server.ask("PUBLISH", bus, message) > 0
        assert await next_of(hints) == "known"
        for message in (b"s\xff", b"l", b"lx:", b"c", b"ca b \xc1"):
            redis_server.ask("PUBLISH", bus, message)
            assert isinstance(await next_of(hints), HintsLost)
        redis_server.ask("PUBLISH", bus, b"sknown")
        assert await next_of(hints) == "known"


async def test_rate_limit_bucket_with_a_future_timestamp_is_treated_as_empty(
    storage: RedisStorage, redis_server: RedisServer
):
    """It gets tokens as any other does."""
    async with storage.join("tested") as one:
        assert await one.rate_limits.acquire(b"caller", limit=1, period_ms=HOUR, burst=5) == 0
        (key,) = redis_server.ask("KEYS", "*:b:*")
        redis_server.ask("SET", key, 10**18)
        assert HOUR - 60_000 < await one.rate_limits.acquire(b"caller", limit=1, period_ms=HOUR, burst=5) <= HOUR


# Other versions


async def test_replicas_of_versions_with_different_redis_layouts_share_no_data(
    storage: RedisStorage, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    async with storage.join("tested") as old:
        monkeypatch.setattr(shared, "_LAYOUT", 2)
        async with storage.join("tested") as new:
            await old.sessions.open("session", b"facts", caller=b"ann", mark=b"mark", idle_ms=HOUR, limit=9)
            assert await new.sessions.read("session", idle_ms=HOUR) is None
            await old.courier.heartbeat(lease_ms=HOUR)
            assert await new.courier.find_dead([old.id]) == {old.id}
            assert old.secret != new.secret
    assert {name.split(b":")[2].rstrip(b"}") for name in redis_server.ask("KEYS", "*")} == {b"1", b"2"}


async def test_message_between_replicas_in_an_unknown_format_is_reported_as_lost(
    storage: RedisStorage, redis_server: RedisServer
):
    """And nothing is taken for the key of a long letter."""
    redis_server.ask("SET", "kept", "by others")
    async with storage.join("tested") as one, one.courier.mailbox() as letters:
        assert redis_server.ask("PUBLISH", PREFIX + b":r:" + one.id.encode(), b"zkept") == 1
        await one.courier.send(one.id, b"letter")
        assert isinstance(await next_of(letters), HintsLost)
        assert await next_of(letters) == b"letter"
    assert redis_server.ask("GET", "kept") == b"by others"


# Notifications of extensions


async def test_extension_notification_reaches_clients_of_all_replicas_through_redis(
    storage: RedisStorage,
):
    async with replicas_that_tell(storage, b"a" * 32, b"a" * 32) as (one, two):
        for size in range(50):
            one.server.notify(grown, Grown(size, "openly"))
        await until(lambda: len(two.told) >= 50)
        assert two.told == one.told == [Grown(size, "openly") for size in range(50)]
        one.server.notify(grown, Grown(50, "a" * 2800))  # whose hint may be too long
        two.server.notify(grown, Grown(51))
        await until(lambda: len(one.told) + len(two.told) >= 104)
        assert sorted(two.told[50:], key=attrs.astuple) == sorted(one.told[50:], key=attrs.astuple)
