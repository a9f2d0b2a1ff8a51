"""Our server passes the scenarios of ``trio-mcp torture`` over stdio."""

from __future__ import annotations

import pytest
from tests.torture.runs import NAMES, PATIENCE, outcome_of, runs, server_for

from trio_mcp.connecting.stdio import Command
from trio_mcp.torture.scenarios import Era, Scenario
from trio_mcp.torture.server_scenarios import SERVER_SCENARIOS
from trio_mcp.torture.server_under_test import ServerUnderTest


@pytest.mark.parametrize(("scenario", "era"), runs(SERVER_SCENARIOS))
async def test_trio_mcp_server_passes_the_torture_test_scenarios_over_stdio(scenario: Scenario, era: Era) -> None:
    outcome = await outcome_of(scenario, ServerUnderTest(era, Command(server_for(scenario)), NAMES, patience=PATIENCE))
    assert outcome.status == ("skipped" if scenario.id.startswith("http-") else "passed"), outcome.reason
