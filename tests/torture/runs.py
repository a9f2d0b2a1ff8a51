"""What the tests of ``trio-mcp torture`` share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from trio_mcp.torture.scenarios import ERAS, Scenario, ScenarioOutcome, UnderTest, run_scenarios
from trio_mcp.torture.server_under_test import TOOLS

HERE = Path(__file__).parent
SERVER = [sys.executable, str(HERE / "servers" / "trio_mcp_server.py")]
CLIENT = [sys.executable, str(HERE / "clients" / "trio_mcp_client.py"), "{server}"]
NAMES = {kind: kind for kind in TOOLS}
LIMIT = 100
PATIENCE = 8.0
"""For busy machines."""


async def outcome_of(scenario: Scenario, under_test: UnderTest) -> ScenarioOutcome:
    (outcome,) = [each async for each in run_scenarios([scenario], under_test)]
    return outcome


def runs(scenarios: list[Scenario]) -> list[Any]:
    return [pytest.param(each, era, id=f"{each.id}-{era}") for each in scenarios for era in ERAS if era in each.eras]
