"""What the tests of ``trio-mcp torture`` share. Each run has a process of its own, which is forked but where the start
or the end of processes is what is tested."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.forked import forked_command

from trio_mcp.torture.scenarios import ERAS, Scenario, ScenarioOutcome, UnderTest, run_scenarios
from trio_mcp.torture.server_under_test import TOOLS

HERE = Path(__file__).parent
SERVER_FILE = str(HERE / "servers" / "trio_mcp_server.py")
SERVER = [sys.executable, SERVER_FILE]
CLIENT = [str(HERE / "clients" / "trio_mcp_client.py"), "{server}"]
"""Behind ``python``."""
NAMES = {kind: kind for kind in TOOLS}
LIMIT = 100
PATIENCE = 8.0
"""For busy machines."""


def server_for(scenario: Scenario) -> list[str]:
    """The command of the server for a scenario."""
    return SERVER if scenario.needs == "process" else forked_command([SERVER_FILE])


async def outcome_of(scenario: Scenario, under_test: UnderTest) -> ScenarioOutcome:
    (outcome,) = [each async for each in run_scenarios([scenario], under_test)]
    return outcome


def runs(scenarios: list[Scenario]) -> list[Any]:
    return [pytest.param(each, era, id=f"{each.id}-{era}") for each in scenarios for era in ERAS if era in each.eras]
