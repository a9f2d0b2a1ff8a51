"""Four replicas are replaced one after another under load, and no call fails.

On a machine that does much else, a request may arrive later than half a second after its connection was accepted, and
is refused then: one call in a hundred may fail here, and none does where there is room.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.replicas.storm import Storm, run_storm
from tests.reverse_proxies.proxies import HAPROXY, NGINX, Proxy


@pytest.mark.parametrize("proxy", [NGINX, HAPROXY], ids=lambda proxy: proxy.name)
async def test_no_call_of_either_era_fails_and_each_replica_has_its_turn(proxy: Proxy, tmp_path: Path) -> None:
    faults = [Storm.restart_one_after_another]
    load, storm = await run_storm(tmp_path, seconds=0, seed=3, faults=faults, proxy=proxy, callers=1)
    assert load.broken == []
    calls = load.outcomes.total()
    assert calls - load.outcomes["answered"] <= calls / 100, load.errors
    assert storm.counts == {"replacements": 4}
    assert len(load.seen) == 8
