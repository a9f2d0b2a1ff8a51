"""The official conformance suite finds nothing wrong with four replicas behind a balancer, either."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from tests.conformance.conftest import suite  # noqa: F401
from tests.conformance.suite import HERE, LEG_LIMIT, REVISIONS, Suite, judge
from tests.fleet.redis_server import RedisServer
from tests.replicas.fleet import serving
from tests.reverse_proxies.proxies import NGINX

pytestmark = pytest.mark.filterwarnings("default::tests.conformance.suite.Skipped")


@pytest.mark.parametrize("revision", REVISIONS)
async def test_replicas_pass_the_conformance_suite_of_each_revision(
    suite: Suite,  # noqa: F811
    revision: str,
    tmp_path: Path,
) -> None:
    with trio.fail_after(LEG_LIMIT), RedisServer(tmp_path) as redis:
        async with serving(tmp_path, NGINX, redis.url, [str(HERE / "server.py")]) as (_, port):
            names = await suite.required(revision, "server")
            faults = await suite.drive_server(f"http://127.0.0.1:{port}/mcp", tmp_path, "--requirements", revision)
    judge("server", {name: faults.get(name, ["there is no result"]) for name in names})
