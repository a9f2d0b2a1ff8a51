"""Faults of coredis 6.9.0 that the link lives with: one test shows each of them with coredis alone.

A test that fails after an upgrade says that coredis has cured the fault. Then the rule of the link that is named in the
docstring may go, once its own tests pass without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from coredis import Redis
from coredis.connection import TCPConnection, TCPLocation
from coredis.exceptions import ConnectionError, PrimaryNotFoundError
from coredis.pool import ConnectionPool
from coredis.retry import ConstantRetryPolicy, ExponentialBackoffRetryPolicy, NoRetryPolicy
from tests.fleet.fault_proxy import open_proxy
from tests.fleet.redis_server import RedisServer
from tests.patience import PATIENCE
from tests.ports import free_port

POOL = 8


def client_of(port: int, **options: Any) -> Redis[bytes]:
    return Redis("127.0.0.1", port, retry_policy=NoRetryPolicy(), **options)


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - the server tells no event
            await trio.sleep(0.01)


async def test_coredis_loses_a_pool_connection_when_a_blocking_command_is_cancelled(redis_server: RedisServer) -> None:
    """Rule 1, no blocking command on a connection of the pool, may go when this fails."""
    async with client_of(redis_server.port, max_connections=POOL) as client:

        async def wait_for_an_entry() -> None:
            await client.xread({"stream": "$"}, block=600_000)

        def blocked() -> str:
            return redis_server.info("clients")["blocked_clients"]

        for _ in range(POOL):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_an_entry)
                await until(lambda: blocked() == "1")
                nursery.cancel_scope.cancel()
            await until(lambda: blocked() == "0")
        with trio.move_on_after(1) as scope:
            await client.ping()
        assert scope.cancelled_caught, "the pool is whole: coredis has cured this"


async def test_coredis_loses_a_pool_connection_when_the_server_disconnects_during_a_redis_wait_command(
    redis_server: RedisServer,
) -> None:
    """Rule 1, no WAIT on a connection of the pool, may go when this fails."""
    async with client_of(redis_server.port, max_connections=2) as client:

        async def write_and_wait() -> None:
            with pytest.raises(ConnectionError), client.ensure_replication(1, timeout_ms=600_000):
                await client.incr("n")

        for _ in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write_and_wait)
                await until(lambda: redis_server.info("clients")["blocked_clients"] == "1")
                redis_server.ask("CLIENT", "KILL", "TYPE", "normal")
        with trio.move_on_after(1) as scope:
            await client.ping()
        assert scope.cancelled_caught, "the pool is whole: coredis has cured this"


async def test_coredis_resends_a_command_after_a_disconnect(redis_server: RedisServer) -> None:
    """Rule 2, `NoRetryPolicy`, may go when this fails; the documentation of coredis has to promise it, too."""
    policy = ConstantRetryPolicy((ConnectionError,), retries=2, delay=0.01)
    async with open_proxy(redis_server.port) as proxy:
        async with (
            Redis("127.0.0.1", proxy.port) as by_default,
            Redis("127.0.0.1", proxy.port, retry_policy=policy) as c,
        ):
            for client, key in ((by_default, "default"), (c, "two")):
                await client.ping()
                proxy.fail("cut", after=0)
                await client.incr(key)
        assert redis_server.ask("MGET", "default", "two") == [b"2", b"2"], "INCR has run once: coredis has cured this"


async def test_coredis_runs_timed_out_commands_when_a_frozen_redis_server_resumes(tmp_path: Path) -> None:
    """Rules 3 and 4, a limit of each call and a new client after two late calls, may go when this fails."""
    with RedisServer(tmp_path) as server:
        async with client_of(server.port, stream_timeout=0.2) as client:
            await client.ping()
            server.stop()
            for _ in range(4):
                with pytest.raises(TimeoutError):
                    await client.incr("n")
            server.go_on()
            await until(lambda: server.ask("GET", "n") == b"4")


async def test_coredis_loses_a_pool_connection_whenever_a_subscription_is_lost(redis_server: RedisServer) -> None:
    """Rule 5, a client of its own for pub/sub that is thrown away, may go when this fails."""
    losses = 0
    with trio.move_on_after(5):  # around all: the end of a subscription that waits for a connection hangs, too
        async with client_of(redis_server.port, max_connections=2) as client, client.pubsub(channels=["a"]):
            while losses < 3:
                await until(lambda: redis_server.ask("PUBSUB", "NUMSUB", "a") == [b"a", 1])
                redis_server.ask("CLIENT", "KILL", "TYPE", "pubsub")
                losses += 1
    assert losses == 2, "a pool of two has made a third connection: coredis has cured this"


async def test_coredis_never_resets_the_reconnect_delay_of_a_subscription(redis_server: RedisServer) -> None:
    """Rule 5, a delay that begins anew after a good while, may go when this fails."""
    policy = ExponentialBackoffRetryPolicy((ConnectionError,), retries=None, base_delay=0.05, max_delay=16)
    async with client_of(redis_server.port) as client, client.pubsub(channels=["a"], retry_policy=policy):
        gaps = list[float]()
        for _ in range(6):
            await until(lambda: redis_server.ask("PUBSUB", "NUMSUB", "a") == [b"a", 1])
            await trio.sleep(0.3)  # the connection is good
            redis_server.ask("CLIENT", "KILL", "TYPE", "pubsub")
            began = trio.current_time()
            await until(lambda: redis_server.ask("PUBSUB", "NUMSUB", "a") == [b"a", 1])
            gaps.append(trio.current_time() - began)
        assert gaps[-1] > 1.0 > gaps[0], "the delay began anew: coredis has cured this"


async def test_coredis_ends_the_iteration_of_a_lost_subscription_silently(redis_server: RedisServer) -> None:
    """Rule 5, no ``async for`` over `PubSub`, may go when this fails. Of those who iterate, about half see the end."""
    readers, ended, one_ended = 12, list[int](), trio.Event()

    async def iterate(client: Redis[bytes], reader: int) -> None:
        async with client.pubsub(channels=["a"], ignore_subscribe_messages=True) as subscription:
            async for _ in subscription:
                pass
            ended.append(reader)
            one_ended.set()
            await trio.sleep_forever()

    async with client_of(redis_server.port) as client, trio.open_nursery() as nursery:
        for reader in range(readers):
            nursery.start_soon(iterate, client, reader)
        await until(lambda: redis_server.ask("PUBSUB", "NUMSUB", "a") == [b"a", readers])
        redis_server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        with trio.move_on_after(5):
            await one_ended.wait()
        nursery.cancel_scope.cancel(reason="seen")
    assert ended, "the iteration goes on: coredis has cured this"


async def test_coredis_buffers_unread_messages_without_a_limit(redis_server: RedisServer) -> None:
    """Rule 5, queues with a bound of our own, may go when this fails."""
    async with client_of(redis_server.port) as client, client.pubsub(channels=["a"]) as subscription:
        for _ in range(20):
            redis_server.ask("EVAL", "for i = 1, 1000 do redis.call('PUBLISH', 'a', string.rep('x', 1000)) end", 0)
        redis_server.ask("PUBLISH", "a", "last")
        kept = 0
        with trio.fail_after(PATIENCE):
            while (message := await subscription.get_message()) is None or message["data"] != b"last":
                await trio.sleep(0 if kept else 0.5)  # the reader sleeps first
                kept += 1
        assert kept >= 20_000, "some were dropped: coredis has cured this"


# Found while the link was written.


async def test_coredis_loses_a_pool_connection_when_a_sentinel_lookup_is_cancelled() -> None:
    """The shield of `Link._connect`, and the drop of the client after each failed connect, may go when this fails."""

    class Unknown(ConnectionPool[TCPConnection]):
        """As `SentinelConnectionPool`, where Sentinel knows no primary."""

        async def _construct_connection(self) -> TCPConnection:
            raise PrimaryNotFoundError

    async with Unknown(location=TCPLocation("127.0.0.1", 1), connection_class=TCPConnection, max_connections=2) as pool:
        for _ in range(2):
            with pytest.raises(PrimaryNotFoundError):
                await pool.get_connection()
        with trio.move_on_after(0.5) as scope:
            with pytest.raises(PrimaryNotFoundError):
                await pool.get_connection()
        assert scope.cancelled_caught, "the pool is whole: coredis has cured this"


async def test_coredis_does_not_close_its_buffers_after_a_failed_connect() -> None:
    """`_ClosesBuffers`, which closes them, may go when this fails."""
    connection = TCPConnection(TCPLocation("127.0.0.1", free_port()))
    with pytest.raises(ConnectionError):
        await connection.run()
    connection._write_buffer_in.send_nowait([])  # raises where the buffer is closed: coredis has cured this then
    for buffer in vars(connection).values():
        if isinstance(buffer, (MemoryObjectReceiveStream, MemoryObjectSendStream)):
            buffer.close()


async def test_coredis_logs_a_traceback_for_a_cancelled_connect(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """`silence`, which keeps that out of the log, may go when this fails."""
    async with open_proxy(redis_server.port) as proxy, client_of(proxy.port) as client:
        proxy.freeze()
        with trio.move_on_after(0.2), pytest.raises(ConnectionError):
            await client.ping()
    assert [record.name for record in caplog.records if record.levelno == logging.ERROR] == ["coredis"]
