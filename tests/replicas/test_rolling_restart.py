"""Four replicas are replaced one after another, and no call fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from tests.replicas.fleet import Fleet, call_pid, fleet, until
from tests.reverse_proxies.proxies import HAPROXY, NGINX, Proxy
from tests.stores.redis_server import RedisServer


async def until_all_serve(replicas: Fleet, seen: set[int]) -> None:
    """Wait until each of the present processes has answered."""
    await until(lambda: replicas.pids <= seen)


@pytest.mark.parametrize("proxy", [NGINX, HAPROXY], ids=lambda proxy: proxy.name)
async def test_no_modern_call_fails_and_each_replica_has_its_turn(proxy: Proxy, tmp_path: Path) -> None:
    seen, calls = set[int](), 0
    with RedisServer(tmp_path) as redis:
        async with fleet(tmp_path, proxy, redis) as replicas, trio.open_nursery() as nursery:

            async def call_on(seconds: float) -> None:
                nonlocal calls
                while True:
                    async with replicas.client() as client:
                        for _ in range(5):
                            seen.add(await call_pid(client, seconds))
                            calls += 1

            for seconds in (0.005, 0.01, 0.05, 0.3):
                nursery.start_soon(call_on, seconds)
            await until_all_serve(replicas, seen)
            for replica in replicas.replicas:
                await replica.replace()
                await until_all_serve(replicas, seen)
            nursery.cancel_scope.cancel(reason="no call has failed")
    assert len(seen) == 8
    assert calls > 100
