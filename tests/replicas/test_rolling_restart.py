"""Four replicas are replaced one after another under load, and no call fails.

But for one: a modern handler that waits for answers has to get them before its process begins to drain.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.replicas.storm import Storm, run_storm
from tests.reverse_proxies.proxies import HAPROXY, NGINX, Proxy


@pytest.mark.parametrize("proxy", [NGINX, HAPROXY], ids=lambda proxy: proxy.name)
async def test_rolling_restart_of_four_replicas_fails_no_call(proxy: Proxy, tmp_path: Path) -> None:
    faults = [Storm.restart_one_after_another]
    load, storm = await run_storm(tmp_path, seconds=0, seed=3, faults=faults, proxy=proxy, callers=1)
    assert load.broken == []
    assert {what: words for what, words in load.errors.items() if not what.startswith("a question: ")} == {}
    assert storm.counts == {"replacements": 4}
    assert len(load.seen) == 8
