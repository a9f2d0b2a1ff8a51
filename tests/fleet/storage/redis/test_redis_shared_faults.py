"""The storage in Redis lives through a Redis that is away, frozen, full or empty, and answers that are lost."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.fleet.fault_proxy import FaultProxy, open_proxy
from tests.fleet.redis_server import RedisServer
from tests.fleet.redis_use import PREFIX, append, next_of, until, until_done, until_gap
from tests.patience import PATIENCE

from trio_mcp.fleet import messenger as letters_of_replicas
from trio_mcp.fleet.messenger import Messenger, ReplicaMessage
from trio_mcp.fleet.storage.redis.storage import RedisStorage
from trio_mcp.stores.shared import ChangeHint, Replica, StoredSession
from trio_mcp.stores.task_store import StoreDown, Uncertain, new_mark
from trio_mcp.testing.stores.task_store_records import HOUR, create, record

# A Redis that goes away


async def test_replica_detects_that_redis_restarted_empty_and_notifies_all_watchers(tmp_path: Path):
    """Sessions are gone, everything may have changed, watchers and mailboxes are told a gap; and all goes on."""
    with RedisServer(tmp_path) as server:
        async with (
            RedisStorage(server.url, limit=10.0).join("tested") as one,
            one.sessions.watch() as sessions,
            one.events.watch() as events,
            one.changes.watch() as changes,
            one.tasks.watch() as tasks,
            one.courier.mailbox() as letters,
        ):
            await one.sessions.open("session", b"facts", caller=b"ann", mark=b"mark", idle_ms=HOUR, limit=9)
            await one.events.open("session", "stream", holder="me", request_id=b"1", retention_ms=HOUR)
            await one.changes.record(["tools"])
            place = (await one.changes.read_since(None)).cursor
            server.kill()
            with pytest.raises((StoreDown, Uncertain)):
                await one.changes.record(["lost"])
            server.start()
            for each in (sessions, events, changes, tasks, letters):
                await until_gap(each)
            assert (await until_done(partial(one.changes.read_since, place))).everything
            assert await one.sessions.read("session", idle_ms=HOUR) is None
            assert not await append(one, "stream", 1, [b"a"])
            assert await one.courier.heartbeat(lease_ms=HOUR) is False
            await one.changes.record(["later"])
            while (hint := await next_of(changes)).changed != ["later"]:
                assert isinstance(hint, ChangeHint)


async def test_killed_redis_keeps_shared_data_in_its_append_only_file(tmp_path: Path):
    """With an append-only file, nothing is lost with the process: a place in the log of changes stays good, too."""
    with RedisServer(tmp_path, "appendonly yes") as server:
        async with RedisStorage(server.url, limit=10.0).join("tested") as one, one.changes.watch() as hints:
            await one.sessions.open("session", b"facts", caller=b"ann", mark=b"mark", idle_ms=HOUR, limit=9)
            await one.events.open("session", "stream", holder="me", request_id=b"1", retention_ms=HOUR)
            assert await append(one, "stream", 1, [b"a"])
            place = (await one.changes.read_since(None)).cursor
            await one.changes.record(["tools"])
            assert await one.replay_guard.add(bytes(32), ttl_ms=HOUR)
            server.restart()
            await until_gap(hints)
            found = await until_done(partial(one.changes.read_since, place))
            assert (found.changed, found.everything) == (["tools"], False)
            assert await one.sessions.read("session", idle_ms=HOUR) == StoredSession(b"facts", b"mark")
            assert await append(one, "stream", 2, [b"b"])
            events = await one.events.read_after("session", "stream", 0, retention_ms=HOUR)
            assert events is not None
            assert events.lines == [b"a", b"b"]
            assert not await one.replay_guard.add(bytes(32), ttl_ms=HOUR)


async def test_storage_call_to_a_frozen_redis_fails_at_the_time_limit(tmp_path: Path):
    """What was sent to it is uncertain; the rest is down; and it is used again without a restart."""
    with RedisServer(tmp_path) as server:
        async with RedisStorage(server.url, limit=0.3).join("tested") as one:
            mark = new_mark()
            await until_done(
                partial(one.sessions.open, "session", b"old", caller=b"ann", mark=b"", idle_ms=HOUR, limit=9)
            )
            server.stop()
            kinds = list[type[Exception]]()
            for _ in range(20):
                begun = trio.current_time()
                try:
                    await one.sessions.change("session", b"new", expected_mark=b"", mark=mark, idle_ms=HOUR)
                except (StoreDown, Uncertain) as error:
                    kinds.append(type(error))
                assert trio.current_time() - begun < 5
            assert len(kinds) == 20
            assert kinds[0] is Uncertain
            assert StoreDown in kinds
            server.go_on()
            assert await until_done(partial(one.changes.record, ["tools"])) is None
            found = await one.sessions.read("session", idle_ms=HOUR)
            assert found is not None
            if found.mark != mark:  # nothing of what was sent has arrived, and no more will come that counts
                assert await one.sessions.change("session", b"new", expected_mark=b"", mark=mark, idle_ms=HOUR)
            assert await one.sessions.read("session", idle_ms=HOUR) == StoredSession(b"new", mark)


async def test_redis_at_maxmemory_rejects_writes_without_changes_and_still_answers_reads(tmp_path: Path):
    with RedisServer(tmp_path, "maxmemory-policy noeviction") as server:
        async with RedisStorage(server.url, limit=10.0).join("tested") as one:
            mark = new_mark()
            await one.sessions.open("session", b"old", caller=b"ann", mark=b"mark", idle_ms=HOUR, limit=9)
            await one.events.open("session", "stream", holder="me", request_id=b"1", retention_ms=HOUR)
            assert await append(one, "stream", 1, [b"a", b"b"])
            await one.changes.record(["tools"])
            await one.courier.heartbeat(lease_ms=HOUR)
            place = (await one.changes.read_since(None)).cursor
            server.ask("CONFIG", "SET", "maxmemory", 1)
            before = {name: server.ask("DUMP", name) for name in server.ask("KEYS", "*")}
            writes: list[Callable[[], Awaitable[Any]]] = [
                partial(one.sessions.open, "other", b"", caller=b"ann", mark=b"", idle_ms=HOUR, limit=9),
                partial(one.sessions.change, "session", b"new", expected_mark=b"mark", mark=mark, idle_ms=HOUR),
                partial(one.events.open, "session", "other", holder="me", request_id=b"1", retention_ms=HOUR),
                partial(one.events.open, "other", "other", holder="me", request_id=b"1", retention_ms=HOUR),
                partial(one.events.take_over, "session", "stream", holder="you", retention_ms=HOUR),
                partial(append, one, "stream", 3, [b"c"], limit=2),
                partial(append, one, "stream", 3, [], note=b"note"),
                partial(append, one, "stream", 3, [], finish=True),
                partial(
                    one.events.finish_dead, "session", "stream", dead_holder="me", line=b"x", limit=9, retention_ms=HOUR
                ),
                partial(one.changes.record, ["prompts"]),
                partial(one.courier.send, one.id, bytes(100_000)),
                partial(one.replay_guard.add, bytes(32), ttl_ms=HOUR),
                partial(one.rate_limits.acquire, b"caller", limit=1, period_ms=HOUR, burst=1),
                partial(one.courier.heartbeat, lease_ms=HOUR),
            ]
            for write in writes:
                with pytest.raises(StoreDown, match="OOM"):
                    await write()
            found = await one.sessions.read("session", idle_ms=HOUR)
            assert found is not None
            assert found.state == b"old"
            events = await one.events.read_after("session", "stream", 0, retention_ms=HOUR)
            assert events is not None
            assert events.lines == [b"a", b"b"]
            assert not (await one.changes.read_since(place)).changed
            assert await one.courier.find_dead([one.id]) == set()
            assert await append(one, "stream", 1, [b"a"])
            after = {name: server.ask("DUMP", name) for name in server.ask("KEYS", "*")}
            assert {name for name in before | after if before.get(name) != after.get(name)} <= {
                b"{%b:s}:sessions" % PREFIX,  # the session lasts longer
                b"{%b:s}:sessions:%b" % (PREFIX, hashlib.blake2b(b"ann", digest_size=16).hexdigest().encode()),
            }
            assert await one.sessions.delete("session")
            await one.events.delete("session")
            server.ask("CONFIG", "SET", "maxmemory", 0)
            await one.changes.record(["prompts"])


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
        RedisStorage(server.url, limit=10.0).join("tested") as other,
        RedisStorage(proxy.url, limit=0.2).join("tested") as one,
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
    await until_done(partial(one.courier.find_dead, ["nobody"]))


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


async def test_session_change_is_applied_once_if_it_is_retried_after_an_uncertain_outcome(redis_server: RedisServer):
    """A reading shows whether it has happened, and the same call again makes it or is refused."""
    marks = dict[int, bytes]()

    async def attempt(one: Replica, number: int) -> None:
        marks[number] = new_mark()
        await one.sessions.change("session", b"%d" % number, expected_mark=b"was", mark=marks[number], idle_ms=HOUR)

    async def check(other: Replica, number: int, returned: bool) -> None:
        found = await other.sessions.read("session", idle_ms=HOUR)
        assert found is not None
        happened = found.mark == marks[number]
        assert happened or not returned
        again = await other.sessions.change(
            "session", b"%d" % number, expected_mark=b"was", mark=marks[number], idle_ms=HOUR
        )
        assert again is not happened
        found = await other.sessions.read("session", idle_ms=HOUR)
        assert found is not None
        assert (found.state, found.mark) == (b"%d" % number, marks[number])
        assert await other.sessions.change("session", b"", expected_mark=marks[number], mark=b"was", idle_ms=HOUR)

    async with RedisStorage(redis_server.url, limit=10.0).join("tested") as one:
        await one.sessions.open("session", b"", caller=b"ann", mark=b"was", idle_ms=HOUR, limit=9)
    await with_faults(redis_server, attempt, check)


async def test_event_append_is_applied_once_if_it_is_retried_after_an_uncertain_outcome(redis_server: RedisServer):
    """The same call again leaves each line once."""

    async def attempt(one: Replica, number: int) -> None:
        await append(one, "stream", 2 * number - 1, [b"%d a" % number, b"%d b" % number], note=b"%d" % number)

    async def check(other: Replica, number: int, returned: bool) -> None:
        found = await other.events.read_after("session", "stream", 2 * number - 2, retention_ms=HOUR)
        assert found is not None
        lines = [b"%d a" % number, b"%d b" % number]
        assert found.lines == lines or (not returned and not found.lines)
        assert await append(other, "stream", 2 * number - 1, lines, note=b"%d" % number)
        found = await other.events.read_after("session", "stream", 2 * number - 2, retention_ms=HOUR)
        assert found is not None
        assert (found.lines, found.stream.note) == (lines, b"%d" % number)

    async with RedisStorage(redis_server.url, limit=10.0).join("tested") as one:
        await one.events.open("session", "stream", holder="me", request_id=b"", retention_ms=HOUR)
    await with_faults(redis_server, attempt, check)


async def test_change_notification_is_delivered_at_least_once_after_an_uncertain_outcome(redis_server: RedisServer):
    """Noted again, a thing is there once."""
    places = dict[int, str]()

    async def attempt(one: Replica, number: int) -> None:
        await one.changes.record([f"thing {number}"])

    async def check(other: Replica, number: int, returned: bool) -> None:
        found = await other.changes.read_since(places[number])
        assert found.changed == [f"thing {number}"] or (not returned and not found.changed)
        await other.changes.record([f"thing {number}"])
        found = await other.changes.read_since(places[number])
        assert (found.changed, found.everything) == ([f"thing {number}"], False)
        places[number + 1] = found.cursor

    async with RedisStorage(redis_server.url, limit=10.0).join("tested") as one:
        places[1] = (await one.changes.read_since(None)).cursor
    await with_faults(redis_server, attempt, check)


async def test_replay_guard_of_the_storage_adds_a_value_at_most_once_after_an_uncertain_outcome(
    redis_server: RedisServer,
):
    """Nobody else uses it afterwards, if it was added, and one may if it was not."""

    async def attempt(one: Replica, number: int) -> None:
        assert await one.replay_guard.add(b"%032d" % number, ttl_ms=HOUR)

    async def check(other: Replica, number: int, returned: bool) -> None:
        key = b"%b:j:%b" % (PREFIX, (b"%032d" % number).hex().encode())
        was_there = bool(redis_server.ask("EXISTS", key))
        assert was_there or not returned
        assert await other.replay_guard.add(b"%032d" % number, ttl_ms=HOUR) is not was_there
        assert not await other.replay_guard.add(b"%032d" % number, ttl_ms=HOUR)

    await with_faults(redis_server, attempt, check)


async def test_messages_sent_to_a_replica_while_its_redis_subscription_is_lost_are_received_afterwards(
    redis_server: RedisServer,
) -> None:
    """Short ones and long ones, in order, and none of before that was not read yet a second time in its place."""
    letters = [b"short", bytes(5_000), b"x" * 100_000, b"last"]
    async with (
        open_proxy(redis_server.port) as proxy,
        RedisStorage(proxy.url, limit=1.0).join("tested") as one,
        RedisStorage(redis_server.url, limit=10.0).join("tested") as two,
        one.courier.mailbox() as mailbox,
    ):
        for turn in range(3):
            proxy.refuses = True
            proxy.cut_all()
            await until(lambda: redis_server.ask("PUBSUB", "NUMSUB", f"trio-mcp:tested:1:r:{one.id}")[1] == 0)
            for letter in letters:
                await two.courier.send(one.id, letter + b"%d" % turn)
                await trio.sleep(0.002)  # the order of letters of one moment is not kept
            proxy.refuses = False
            await until_gap(mailbox)
            wanted = [letter + b"%d" % turn for letter in letters]
            found: list[bytes] = []
            while len(found) < len(wanted):
                letter = await next_of(mailbox)
                if letter in wanted:
                    found.append(letter)
            assert found == wanted


async def test_each_message_between_replicas_is_handled_once_despite_repeated_redis_disconnects(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No copy goes out here: what the channel does not bring stands in the list of its reader."""
    monkeypatch.setattr(letters_of_replicas, "_FIRST_RETRY_DELAY", 10 * PATIENCE)
    monkeypatch.setattr(letters_of_replicas, "_MAX_RETRY_DELAY", 10 * PATIENCE)
    read: list[bytes] = []

    def reader(letter: ReplicaMessage) -> None:
        read.append(letter.content)
        letter.ack(b"read " + letter.content[:4])

    async with (
        RedisStorage(redis_server.url, limit=10.0).join("tested") as one,
        RedisStorage(redis_server.url, limit=10.0).join("tested") as two,
        trio.open_nursery() as nursery,
    ):
        ours, theirs = Messenger(one), Messenger(two)
        theirs.register("talk", reader)
        await nursery.start(ours.run)
        await nursery.start(theirs.run)
        sent = [b"%04d" % number + bytes(number % 3 * 5_000) for number in range(30)]
        with trio.fail_after(PATIENCE):
            for content in sent:
                redis_server.ask("CLIENT", "KILL", "TYPE", "pubsub")
                receipt = await ours.send(two.id, "talk", content, patience=PATIENCE)
                assert receipt == b"read " + content[:4]
        assert read == sent
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_redis_list_of_messages_for_a_replica_is_limited_in_length_bytes_and_age(
    redis_server: RedisServer,
) -> None:
    async with RedisStorage(redis_server.url, limit=10.0).join("tested") as one:
        for number in range(1100):
            await one.courier.send("nobody", b"%04d" % number + bytes(4000))
        (listed,) = redis_server.ask("KEYS", "*:listed")
        assert redis_server.ask("ZCARD", listed) == 1000
        assert redis_server.ask("MEMORY", "USAGE", listed, "SAMPLES", 0) < 6 * 2**20
        assert 0 < redis_server.ask("PTTL", listed) <= 10_000
        (newest,) = redis_server.ask("ZRANGE", listed, -1, -1)
        redis_server.ask("DEL", listed)
        redis_server.ask("ZADD", listed, 1, b"wold")  # of long ago
        await one.courier.send("nobody", newest[1:])
        assert redis_server.ask("ZRANGE", listed, 0, -1) == [newest]
        await one.courier.send("nobody", newest[1:])
        assert redis_server.ask("ZCARD", listed) == 1


async def test_heartbeats_and_lease_renewals_are_sent_although_another_redis_connection_is_blocked(
    redis_server: RedisServer,
) -> None:
    """All other commands wait there."""
    async with (
        open_proxy(redis_server.port) as proxy,
        RedisStorage(proxy.url, limit=0.5).join("tested") as one,
    ):
        await create(one.tasks, record("task", holder="me"))
        await one.courier.heartbeat(lease_ms=HOUR)
        await use_seen(one)
        fault = proxy.fail("hold", after=0, for_connection=0)
        with pytest.raises(Uncertain):
            await use_seen(one)
        assert fault.happened.is_set()
        assert await one.courier.heartbeat(lease_ms=HOUR) is True
        assert await one.tasks.renew({"task": "me"}, lease_ms=HOUR) == []
        proxy.let_go()


async def use_seen(replica: Replica) -> None:
    await replica.replay_guard.add(new_mark() * 4, ttl_ms=HOUR)


async def test_redis_outage_is_logged_once_although_it_affects_two_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(tmp_path) as server:
        async with RedisStorage(server.url, limit=1.0).join("tested") as one:
            server.kill()
            await until(lambda: one.counts is not None and not one.counts.is_up)
            await trio.sleep(0.3)  # the other link learns of the loss
            server.start()
            await until_done(partial(one.courier.heartbeat, lease_ms=HOUR))
            await until_done(partial(use_seen, one))
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert ["cannot be used" in text for text in told] == [True, False]
    assert told[1].endswith("can be used again")


@pytest.mark.parametrize("length", [4096, 4097, 2**18, 2**18 + 1, 2**19, 3 * 2**18 + 5])
async def test_message_between_replicas_that_is_split_into_chunks_is_read_completely_and_deleted(
    redis_server: RedisServer, length: int
) -> None:
    async with RedisStorage(redis_server.url, limit=10.0).join("tested") as one, one.courier.mailbox() as mailbox:
        letter = random.Random(length).randbytes(length)
        for number in (1, 1, None):
            await one.courier.send(one.id, letter, number=number)
            assert await next_of(mailbox) == letter
        assert redis_server.ask("KEYS", "*:m:*") == []


async def test_large_messages_between_replicas_are_received_in_order(redis_server: RedisServer) -> None:
    async with RedisStorage(redis_server.url, limit=10.0).join("tested") as one, one.courier.mailbox() as mailbox:
        letters = [bytes([n]) * (100_000 if n % 3 else 10) for n in range(20)]
        for number, letter in enumerate(letters):
            await one.courier.send(one.id, letter, number=number)
        assert [await next_of(mailbox) for _ in letters] == letters
