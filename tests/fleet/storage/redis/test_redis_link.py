from __future__ import annotations

import gc
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
import trio.testing
from tests.fleet.fault_proxy import FaultProxy, open_proxy
from tests.fleet.redis_server import RedisServer
from tests.patience import PATIENCE
from tests.ports import free_port

from trio_mcp.fleet.storage.redis import link as link_module
from trio_mcp.fleet.storage.redis.address import parse_url
from trio_mcp.fleet.storage.redis.client import open_client
from trio_mcp.fleet.storage.redis.link import Link, Script, open_link
from trio_mcp.stores.task_store import StoreDown, Uncertain

COUNT = Script("count", "return redis.call('INCR', KEYS[1])")
ECHO = Script("echo", "return {KEYS[1], ARGV[1], ARGV[2], 7, false}")
HALF = Script("half", "redis.call('SET', KEYS[1], 'half') return redis.call('LPUSH', KEYS[1], 'x')")
SLOW = Script("slow", "redis.call('INCR', KEYS[1]) local n = 0 for i = 1, 5e6 do n = n + i end return n")
LONG = 30.0
"""A limit for calls that have an answer."""


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - the server and the link tell no event
            await trio.sleep(0.01)


async def up(link: Link) -> None:
    with trio.fail_after(PATIENCE):
        await link.wait_until_up()


@pytest.fixture
def no_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes the proxy is the test's alone."""
    monkeypatch.setattr(link_module, "_PING_EVERY", 10 * PATIENCE)
    monkeypatch.setattr(link_module, "_IDLE", 10 * PATIENCE)


# The verbs.


async def test_redis_script_call_returns_bytes_integers_and_none_for_nil(redis_url: str) -> None:
    async with open_link(redis_url, limit=LONG) as link:
        await up(link)
        assert await link.script(ECHO, ["key"], [b"\x00\xff", "ä"]) == [b"key", b"\x00\xff", "ä".encode(), 7, None]
        assert await link.script(ECHO, ["key"], [12, -1]) == [b"key", b"12", b"-1", 7, None]


async def test_redis_script_is_uploaded_only_if_redis_does_not_know_it(redis_server: RedisServer) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        redis_server.ask("SCRIPT", "FLUSH")
        assert [await link.script(COUNT, ["n"]) for _ in range(3)] == [1, 2, 3]
        redis_server.ask("SCRIPT", "FLUSH")
        assert await link.script(COUNT, ["n"]) == 4
        calls = {name: stat.split(",")[0] for name, stat in redis_server.info("commandstats").items()}
        assert calls["cmdstat_eval"] == "calls=2"
        assert calls["cmdstat_evalsha"] == "calls=4"
        assert link.round_trips == 6


async def test_redis_pipeline_returns_all_results_in_order(redis_url: str) -> None:
    async with open_link(redis_url, limit=LONG) as link:
        await up(link)
        assert await link.pipeline([]) == []
        assert await link.pipeline(
            [("SET", "a", 1, "PX", 60_000), ("GET", b"a"), ("HSET", "h", "f", b"v"), ("HGETALL", "h"), ("GET", "b")]
        ) == [b"OK", b"1", 1, {b"f": b"v"}, None]
        assert link.round_trips == 1


async def test_concurrent_trio_tasks_share_one_redis_connection(redis_server: RedisServer) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        results = list[int]()

        async def count() -> None:
            results.append(await link.script(COUNT, ["n"]))

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(count)
        assert sorted(results) == list(range(1, 201))
        assert redis_server.info("clients")["connected_clients"] == "2"  # one of them asks this


@pytest.mark.parametrize(
    "command",
    [
        ("BLPOP", "a", 0),
        (b"wait", 1, 0),
        ("SUBSCRIBE", "a"),
        ("MULTI",),
        ("SELECT", 1),
        ("XREAD", b"block", 0, "STREAMS", "a", "0"),
    ],
    ids=str,
)
async def test_blocking_redis_command_raises_value_error(command: Any, redis_url: str) -> None:
    async with open_link(redis_url, limit=LONG) as link:
        await up(link)
        with pytest.raises(ValueError, match="blocks the shared connection"):
            await link.pipeline([("SET", "a", 1), command])
        assert await link.pipeline([("GET", "a"), ("XREAD", "STREAMS", "a", "0")]) == [None, None]


async def test_redis_command_argument_of_an_invalid_type_raises_type_error(redis_url: str) -> None:
    wrong: Any = None
    async with open_link(redis_url, limit=LONG) as link:
        await up(link)
        with pytest.raises(TypeError, match="must be bytes, str or int"):
            await link.pipeline([("SET", "a", wrong)])
        with pytest.raises(TypeError, match="must be bytes, str or int"):
            await link.script(ECHO, ["a"], [wrong, 1.5])  # type: ignore[list-item]
        assert await link.script(COUNT, ["n"]) == 1


async def test_redis_storage_raises_for_a_time_limit_that_is_not_positive() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        async with open_link("redis://127.0.0.1", limit=0):
            pass


def test_coredis_is_not_imported_before_a_redis_connection_is_opened() -> None:
    program = "import sys, trio_mcp.fleet.storage.redis.link; sys.exit('coredis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# Errors that Redis answers.


async def test_redis_script_that_is_rejected_changes_nothing_and_raises_store_down(redis_server: RedisServer) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        redis_server.ask("CONFIG", "SET", "maxmemory", 1)
        try:
            with pytest.raises(StoreDown, match="refused the script 'count': OOM"):
                await link.script(COUNT, ["n"])
        finally:
            redis_server.ask("CONFIG", "SET", "maxmemory", 0)
        with pytest.raises(StoreDown, match="Error compiling script"):
            await link.script(Script("torn", "return ("), [])
        assert redis_server.ask("GET", "n") is None
        assert await link.script(COUNT, ["n"]) == 1


async def test_redis_at_maxmemory_still_executes_further_writes_of_a_script_after_its_first_write(
    redis_server: RedisServer,
) -> None:
    """So `StoreDown` is right for OOM; a release of Redis that changes this is noticed here."""
    redis_server.ask("SET", "a", 1)
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        redis_server.ask("CONFIG", "SET", "maxmemory", 1)
        try:
            script = Script("both", "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[2], 1) return 'both'")
            assert await link.script(script, ["a", "b"]) == b"both"
        finally:
            redis_server.ask("CONFIG", "SET", "maxmemory", 0)


async def test_redis_script_that_fails_after_its_first_write_raises_an_uncertain_outcome_error(
    redis_server: RedisServer,
) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        with pytest.raises(Uncertain, match=r"'half': WRONGTYPE .* stays"):
            await link.script(HALF, ["a"])
        assert redis_server.ask("GET", "a") == b"half"
        assert link.uncertain == 1
        assert link.is_up


async def test_client_opens_a_new_connection_after_redis_reports_that_it_is_read_only(
    redis_server: RedisServer,
) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        redis_server.ask("REPLICAOF", "127.0.0.1", free_port())
        try:
            before = int(redis_server.info("stats")["total_connections_received"])
            with pytest.raises(StoreDown, match="READONLY"):
                await link.script(COUNT, ["n"])
        finally:
            redis_server.ask("REPLICAOF", "NO", "ONE")
        assert await link.script(COUNT, ["n"]) == 1
        # Two connections are of the commands in the clear, and one of the question itself.
        assert int(redis_server.info("stats")["total_connections_received"]) - before == 3


async def test_redis_pipeline_raises_store_down_if_no_command_was_executed(redis_url: str) -> None:
    async with open_link(redis_url, limit=LONG) as link:
        await up(link)
        await link.pipeline([("SET", "a", "text")])
        with pytest.raises(StoreDown, match="WRONGTYPE"):
            await link.pipeline([("LPUSH", "a", 1), ("LPUSH", "a", 2)])


async def test_redis_pipeline_raises_an_uncertain_outcome_error_if_only_some_commands_ran(
    redis_server: RedisServer,
) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        with pytest.raises(Uncertain, match=r"WRONGTYPE .* other commands"):
            await link.pipeline([("SET", "a", "text"), ("LPUSH", "a", 1)])
        assert redis_server.ask("GET", "a") == b"text"


# Loss and return.


async def test_redis_connection_opens_immediately_but_its_calls_fail_until_redis_is_available(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path, "user default on nopass ~* &* +@all", "user ann on >sesame ~* &* +@all")
    url = server.url.replace("//", "//ann:sesame@")
    async with open_link(url, limit=LONG) as link:
        assert not link.is_up
        with pytest.raises(StoreDown, match="cannot be used"):
            await link.script(COUNT, ["n"])
        await trio.sleep(1)  # several tries are made, and none is told again
        with server:
            await up(link)
            assert link.is_up
            assert await link.script(COUNT, ["n"]) == 1
    told = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == [logging.WARNING, logging.WARNING]
    assert told[0][1].startswith(f"Redis at 127.0.0.1:{server.port} cannot be used: ")
    assert told[0][1].count("cannot be used") == 1
    assert told[1][1] == f"Redis at 127.0.0.1:{server.port} can be used again"
    assert "sesame" not in caplog.text
    assert link.reconnects == 1
    with pytest.raises(StoreDown, match="the link was closed"):
        await link.script(COUNT, ["n"])


async def test_error_for_a_wrong_redis_password_does_not_contain_the_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path, "user default on nopass ~* &* +@all", "user ann on >sesame ~* &* +@all")
    with server:
        async with open_link(server.url.replace("//", "//ann:pots@"), limit=LONG) as link:
            await until(lambda: "WRONGPASS" in caplog.text)
            with pytest.raises(StoreDown, match="WRONGPASS") as caught:
                await link.script(COUNT, ["n"])
    assert "pots" not in caplog.text + str(caught.value) + repr(link)
    assert "coredis" not in {record.name for record in caplog.records}


async def test_client_reconnects_to_a_killed_redis_after_its_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(tmp_path, "appendonly yes", "appendfsync always") as server:
        async with open_link(server.url, limit=LONG) as link:
            await up(link)
            for turn in range(3):
                assert await link.script(COUNT, ["n"]) == turn + 1
                server.kill()
                with pytest.raises((StoreDown, Uncertain)):
                    while True:
                        await link.script(COUNT, ["other"])
                with pytest.raises(StoreDown):
                    while True:
                        await link.script(COUNT, ["other"])
                assert not link.is_up
                server.start()
                await up(link)
            assert link.reconnects == 3
            assert len(caplog.records) == 6


async def test_call_to_a_frozen_redis_fails_at_the_time_limit_and_later_calls_fail_immediately(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        async with open_link(server.url, limit=0.5) as link:
            await up(link)
            await link.script(COUNT, ["n"])
            server.stop()
            for _ in range(2):
                began = trio.current_time()
                with pytest.raises((Uncertain, StoreDown)):
                    await link.script(COUNT, ["n"])
                assert trio.current_time() - began >= 0.45
            began = trio.current_time()
            with pytest.raises(StoreDown, match="does not answer"):
                await link.script(COUNT, ["n"])
            assert trio.current_time() - began < 0.4
            server.go_on()
            await up(link)
            # What was sent before runs late: that is what `Uncertain` says.
            assert await link.script(COUNT, ["n"]) in (2, 3, 4)


async def test_client_detects_a_frozen_redis_even_without_calls(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        async with open_link(server.url, limit=0.5) as link:
            await up(link)
            server.stop()
            await until(lambda: not link.is_up)
            server.go_on()
            await up(link)


@pytest.mark.usefixtures("no_pings")
@pytest.mark.parametrize("way", ["requests", "answers"])
async def test_redis_connection_stays_open_while_calls_wait_behind_a_large_transfer(
    way: Literal["requests", "answers"], redis_server: RedisServer
) -> None:
    redis_server.ask("SET", "much", "x" * 4_000_000)
    async with open_proxy(redis_server.port) as proxy, open_link(proxy.url, limit=0.5) as link:
        await up(link)
        await link.script(COUNT, ["n"])
        connections = proxy.connections
        slow = ("SET", "more", b"x" * 4_000_000) if way == "requests" else ("GET", "much")
        for _ in range(3):
            proxy.fail("hold", after=1_000_000, way=way)
            with pytest.raises(Uncertain):
                await link.pipeline([slow])
            if way == "requests":
                with pytest.raises(Uncertain):
                    await link.script(COUNT, ["n"])
            assert link.is_up
        proxy.let_go()
        with trio.fail_after(PATIENCE):
            while not await is_counted(link):
                pass
        assert (link.reconnects, proxy.connections) == (0, connections)


async def is_counted(link: Link) -> bool:
    try:
        await link.script(COUNT, ["n"])
    except Uncertain:
        return False
    return True


async def test_client_detects_a_redis_that_freezes_during_a_large_transfer(redis_server: RedisServer) -> None:
    async with open_proxy(redis_server.port) as proxy, open_link(proxy.url, limit=0.5) as link:
        await up(link)
        proxy.freeze()
        with pytest.raises(Uncertain):
            await link.pipeline([("SET", "more", b"x" * 4_000_000)])
        await until(lambda: not link.is_up)
        proxy.thaw()
        await up(link)


async def test_idle_redis_connection_stays_open(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_PING_EVERY", 0.3)
    async with open_link(redis_server.url, limit=2) as link:  # a connection may be silent for 3 s
        await up(link)
        before = connections_of(redis_server)
        await trio.sleep(5)
        assert before
        assert connections_of(redis_server) >= before


def connections_of(server: RedisServer) -> set[bytes]:
    """Ids of all connections that have sent something else than this question."""
    lines = server.ask("CLIENT", "LIST").splitlines()
    return {line.split()[0] for line in lines if b"cmd=client|list" not in line}


# What the proxy does to one exchange.


@pytest.fixture(params=["cut", "swallow", "hold"])
def kind(request: pytest.FixtureRequest) -> Literal["cut", "swallow", "hold"]:
    return request.param


@pytest.mark.usefixtures("no_pings")
@pytest.mark.parametrize("after", range(len(b":1\r\n")))
async def test_redis_call_without_a_complete_reply_raises_an_uncertain_outcome_error_and_runs_once(
    kind: Literal["cut", "swallow", "hold"], after: int, redis_server: RedisServer
) -> None:
    limit = LONG if kind == "cut" else 0.4
    async with open_proxy(redis_server.port) as proxy, open_link(proxy.url, limit=limit) as link:
        await up(link)
        assert await link.script(COUNT, ["other"]) == 1
        proxy.fail(kind, after=after)
        with pytest.raises(Uncertain):
            await link.script(COUNT, ["n"])
        assert redis_server.ask("GET", "n") == b"1"
        proxy.let_go()
        if kind == "swallow":
            with pytest.raises((Uncertain, StoreDown)):
                await link.script(COUNT, ["other"])
            await up(link)
            await until(lambda: link.reconnects == 1)
        # No answer is taken for the answer to another call.
        assert await link.script(ECHO, ["key"], [1, 2]) == [b"key", b"1", b"2", 7, None]
        assert redis_server.ask("GET", "n") == b"1"


REQUEST = b"*4\r\n$7\r\nEVALSHA\r\n$40\r\n" + b"." * 40 + b"\r\n$1\r\n1\r\n$1\r\nn\r\n"


@pytest.mark.usefixtures("no_pings")
async def test_redis_call_runs_at_most_once_if_the_connection_breaks_at_any_byte(redis_server: RedisServer) -> None:
    async with open_proxy(redis_server.port) as proxy, open_link(proxy.url, limit=LONG) as link:
        await up(link)
        await link.script(COUNT, ["other"])
        for after in range(len(REQUEST) + 1):
            fault = proxy.fail("cut", after=after, way="requests")
            redis_server.ask("DEL", "n")
            with pytest.raises((Uncertain, StoreDown)) as caught:
                await link.script(COUNT, ["n"])
            assert fault.happened.is_set()
            if caught.type is StoreDown:  # the connection before was seen to be cut, or the next one was cut
                assert redis_server.ask("GET", "n") is None
            else:
                await until(lambda: redis_server.info("clients")["connected_clients"] == "1")
                assert redis_server.ask("GET", "n") == (b"1" if after == len(REQUEST) else None)
            await up(link)
            assert await link.script(ECHO, ["key"], [after, 2]) == [b"key", str(after).encode(), b"2", 7, None]


@pytest.mark.usefixtures("no_pings")
async def test_redis_connection_that_breaks_during_its_setup_has_sent_no_command(redis_server: RedisServer) -> None:
    async with open_proxy(redis_server.port) as proxy, open_link(proxy.url, limit=LONG) as link:
        await up(link)
        for after in range(0, 150, 9):  # of the answer to HELLO
            await cut(proxy, redis_server)
            fault = proxy.fail("cut", after=after)
            with pytest.raises(StoreDown):
                await link.script(COUNT, ["n"])
            assert fault.happened.is_set()
            await until(lambda: link.is_up)
        assert redis_server.ask("GET", "n") is None


async def cut(proxy: FaultProxy, server: RedisServer) -> None:
    """Cut all connections, and wait until both sides know."""
    proxy.cut_all()
    await until(lambda: server.info("clients")["connected_clients"] == "1")
    await trio.testing.wait_all_tasks_blocked()


async def test_client_reconnects_at_the_next_redis_call_after_a_disconnect(redis_server: RedisServer) -> None:
    async with open_proxy(redis_server.port) as proxy, open_link(proxy.url, limit=LONG) as link:
        await up(link)
        for number in range(1, 100):  # more than a pool has places
            await cut(proxy, redis_server)
            assert await link.script(COUNT, ["n"]) == number
        assert link.is_up


async def test_time_limit_of_a_redis_call_includes_the_wait_for_a_connection(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_proxy(redis_server.port) as proxy, open_link(proxy.url, limit=0.5) as link:
        await up(link)
        await cut(proxy, redis_server)
        proxy.freeze()
        began = trio.current_time()
        with pytest.raises(StoreDown):
            await link.script(COUNT, ["n"])
        assert 0.4 < trio.current_time() - began < 5
        proxy.thaw()
        await up(link)
        assert await link.script(COUNT, ["m"]) == 1
    assert {record.name for record in caplog.records} == {"trio_mcp"}  # no traceback of coredis


async def test_redis_call_returns_a_reply_that_arrived_while_the_process_was_blocked(redis_server: RedisServer) -> None:
    async with open_link(redis_server.url, limit=1) as link:
        await up(link)
        await link.script(SLOW, ["n"])
        results = list[int]()

        async def call() -> None:
            results.append(await link.script(SLOW, ["n"]))

        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await trio.testing.wait_all_tasks_blocked()
                time.sleep(1.3)  # noqa: ASYNC251 - that is what stands still
        assert len(results) == 3
        assert redis_server.ask("GET", "n") == b"4"


# Cancels.


async def test_redis_call_cancelled_before_it_is_sent_has_no_effect_in_redis(redis_server: RedisServer) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        with trio.CancelScope() as scope:
            scope.cancel(reason="before")
            await link.script(COUNT, ["n"])
        assert scope.cancelled_caught
        assert redis_server.ask("GET", "n") is None
        assert await link.script(COUNT, ["n"]) == 1


async def test_redis_call_cancelled_after_it_is_sent_raises_cancelled_after_the_reply(
    redis_server: RedisServer,
) -> None:
    async with open_proxy(redis_server.port) as proxy, open_link(proxy.url, limit=LONG) as link:
        await up(link)
        fault = proxy.fail("hold", after=0)
        results = list[int]()

        async def call(scope: trio.CancelScope) -> None:
            with scope:
                results.append(await link.script(COUNT, ["n"]))
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(call, scope)
            await fault.happened.wait()
            scope.cancel(reason="while it waits")
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert results == []
            proxy.let_go()
        assert results == [1]
        assert scope.cancelled_caught


async def test_redis_calls_cancelled_while_they_wait_for_a_connection_lose_no_pool_slot(
    redis_server: RedisServer,
) -> None:
    async with open_proxy(redis_server.port) as proxy, open_link(proxy.url, limit=LONG) as link:
        await up(link)
        await cut(proxy, redis_server)
        proxy.freeze()
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(link.script, COUNT, ["n"])
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel(reason="all at once")
            proxy.thaw()
        assert redis_server.ask("GET", "n") is None
        for number in range(1, 20):
            assert await link.script(COUNT, ["n"]) == number
        assert link.reconnects == 0


async def test_redis_connection_that_is_closing_is_replaced_by_a_new_connection(redis_url: str) -> None:
    async with open_link(redis_url, limit=5) as link:
        await link.wait_until_up()
        client = link._client
        assert client is not None
        connection = await client.connection(None)
        client.release(connection)
        connection._write_buffer_in.close()
        assert connection.usable, "coredis says so, and a command on it raises an error of anyio"
        with trio.fail_after(PATIENCE):
            with pytest.raises(StoreDown):
                await link.pipeline([["PING"]])
            await link.wait_until_up()
            assert await link.pipeline([["PING"]]) == [b"PONG"]


async def test_redis_client_that_is_closed_while_it_waits_for_a_connection_raises_os_error(redis_url: str) -> None:
    async def call_the_closed_client() -> str:
        async with open_client(parse_url(redis_url), limit=5, max_idle=10) as client:
            pass
        try:
            await client.connection(None)
        except OSError as error:  # which a `pytest.raises` would keep, with all that its frames have
            return str(error)
        raise AssertionError("there is a connection")

    with warnings.catch_warnings(record=True, action="always", category=ResourceWarning) as unclosed:
        assert "connections to Redis were closed" in await call_the_closed_client()
        gc.collect()
    assert not [each for each in unclosed if "MemoryObject" in str(each.message)], "a connection has open buffers"
