"""The storm in short: see `storm`, which runs as long as one likes."""

from __future__ import annotations

from pathlib import Path

from tests.replicas.storm import Storm, run_storm
from tests.reverse_proxies.proxies import HAPROXY, NGINX


async def test_replicas_lose_no_acknowledged_work_while_replicas_are_killed_and_suspended(tmp_path: Path) -> None:
    faults = [Storm.kill_each_second, Storm.freeze_beyond_leases]
    load, storm = await run_storm(tmp_path, seconds=20, seed=1, faults=faults, proxy=HAPROXY)
    assert load.broken == []
    assert min(storm.counts["kills"], storm.counts["freezes"]) >= 1
    assert load.outcomes["answered"] > 50
    assert min(len(load.ended), load.cancels, load.changes) >= 1


async def test_replicas_lose_no_acknowledged_work_while_redis_is_killed_and_suspended(tmp_path: Path) -> None:
    faults = [Storm.kill_redis, Storm.freeze_redis]
    load, storm = await run_storm(tmp_path, seconds=14, seed=2, faults=faults, proxy=NGINX)
    assert load.broken == []
    assert len(storm.counts) == 2
    assert load.outcomes["answered"] > 50
    assert len(load.ended) >= 1
