"""Our server passes the scenarios of ``trio-mcp torture`` over HTTP."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from tests.forked import Forked
from tests.ports import free_port
from tests.torture.runs import NAMES, PATIENCE, SERVER_FILE, outcome_of, runs

from trio_mcp.connecting.targets import Address
from trio_mcp.torture.scenarios import Era, Scenario
from trio_mcp.torture.server_scenarios import SERVER_SCENARIOS
from trio_mcp.torture.server_under_test import ServerUnderTest


@pytest.fixture
def url() -> Iterator[str]:
    port = free_port()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        process = Forked([SERVER_FILE, str(port)], stdin=null, stdout=null, stderr=null)
    finally:
        os.close(null)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None, "it listens, and does not end"
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()


OVER_HTTP = [each for each in SERVER_SCENARIOS if not each.id.startswith(("line-", "exit-", "request-invalid"))]


@pytest.mark.parametrize(("scenario", "era"), runs(OVER_HTTP))
async def test_trio_mcp_server_passes_the_torture_test_scenarios_over_http(
    scenario: Scenario, era: Era, url: str
) -> None:
    outcome = await outcome_of(scenario, ServerUnderTest(era, Address(url), NAMES, patience=PATIENCE))
    assert outcome.status == ("skipped" if scenario.id == "cancel-process-tree" else "passed"), outcome.reason
