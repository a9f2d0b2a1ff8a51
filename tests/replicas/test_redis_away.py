"""Redis goes away, and comes back: what needs nothing shared goes on, the rest fails within its limit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio
from tests.fleet.redis_server import RedisServer
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.replicas.fleet import APP, Fleet, Replica, call_pid, fleet, until
from tests.reverse_proxies.proxies import HAPROXY, NGINX

from trio_mcp import PeerError

SOON = 5.0
"""Seconds: several times the limit of the link, for a machine that does much else."""


async def status_of(port: int, path: str) -> int:
    """The HTTP status of a path."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join([data async for data in stream])
    return int(answer.split()[1])


async def refused_or_status(port: int, path: str) -> int | None:
    """The HTTP status of a path; `None` where nobody listens."""
    try:
        return await status_of(port, path)
    except OSError:
        return None


async def until_status(port: int, path: str, status: int) -> None:
    with trio.fail_after(PATIENCE):
        while await refused_or_status(port, path) != status:  # noqa: ASYNC110 - a process has no event
            await trio.sleep(0.02)


async def until_logged(replica: Replica, words: str) -> None:
    await until(lambda: replica.log.exists() and words in replica.log.read_text())


async def test_replica_reports_ready_from_its_start_until_sigterm_whether_or_not_redis_is_available(
    tmp_path: Path,
) -> None:
    with RedisServer(tmp_path) as journal:
        redis = RedisServer(tmp_path)
        replica = Replica(free_port(), redis.url, tmp_path / "log", [str(APP), str(journal.port)])
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(replica.start)
                await until_logged(replica, "waits until Redis is available")
                assert await refused_or_status(replica.port, "/readyz") is None
                await trio.to_thread.run_sync(redis.start)
            assert await status_of(replica.port, "/readyz") == 200
            redis.kill()
            await until_logged(replica, "Redis")
            for path in ("/readyz", "/healthz"):
                assert await status_of(replica.port, path) == 200
            replica.process.send_signal(signal.SIGTERM)
            await until_status(replica.port, "/readyz", 503)
            assert await status_of(replica.port, "/healthz") == 200
            with trio.fail_after(PATIENCE):
                assert await replica.process.ended() == 0
        finally:
            replica.kill()
            redis.kill()


async def check_that_calls_go_on(replicas: Fleet) -> None:
    """Check that each replica answers plain calls, and that a task is refused by each, soon and with words."""
    async with replicas.client(call_timeout=SOON) as client:
        seen = set[int]()
        while seen != replicas.pids:
            seen.add(await call_pid(client))
        for _ in replicas.replicas:
            with pytest.raises(PeerError) as caught:
                await client.start_task("work", {"steps": 1, "seconds": 0})
            assert caught.value.code == -31000, caught.value


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_calls_that_need_no_storage_succeed_while_redis_is_down(tmp_path: Path, how: str) -> None:
    proxy = HAPROXY if how == "killed" else NGINX
    with RedisServer(tmp_path, "appendonly yes", "appendfsync everysec") as redis:
        async with fleet(tmp_path, proxy, redis) as replicas:
            with trio.fail_after(PATIENCE):
                async with replicas.client() as client:
                    running = await client.start_task("work", {"steps": 8, "seconds": 0.5})
                    await replicas.until_told(f"task:{running.id}")
                    if how == "killed":
                        redis.kill()
                    else:
                        redis.stop()
                    await check_that_calls_go_on(replicas)
                    if how == "killed":
                        await trio.to_thread.run_sync(redis.start)
                    else:
                        redis.go_on()
                    result = await running.result()
                    later = await client.start_task("work", {"steps": 1, "seconds": 0})
                    assert (await later.result()).text
                told = replicas.told(f"task:{running.id}")
    runs = [f"{epoch} {process}" for epoch, process, what, _ in told if what == "runs"]
    assert result.text == runs[-1]
    assert len(set(runs)) == len(runs)
