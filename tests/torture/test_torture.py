"""Our client passes the scenarios of ``trio-mcp torture``, each scenario finds its defect, and the command reports."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import trio
from tests.forked import forked_command
from tests.pages import Page
from tests.torture.runs import CLIENT, HERE, LIMIT, NAMES, PATIENCE, SERVER, outcome_of, runs

from trio_mcp.connecting.stdio import Command
from trio_mcp.torture import client_scenarios, server_scenarios
from trio_mcp.torture.client_scenarios import CLIENT_SCENARIOS, ClientUnderTest
from trio_mcp.torture.scenarios import ERAS, Era, Scenario
from trio_mcp.torture.server_scenarios import SERVER_SCENARIOS
from trio_mcp.torture.server_under_test import TOOLS, ServerUnderTest, find_tools


@pytest.mark.parametrize(("scenario", "era"), runs(CLIENT_SCENARIOS))
async def test_trio_mcp_client_passes_the_torture_test_scenarios(scenario: Scenario, era: Era) -> None:
    outcome = await outcome_of(scenario, ClientUnderTest(era, forked_command(CLIENT), patience=PATIENCE))
    assert outcome.status == "passed", outcome.reason


FAULTS = {
    "ignores-cancels": "cancel-stops-handler",
    "answers-cancelled": "cancel-no-response-legacy",
    "progress-after-cancel": "cancel-no-progress",
    "answers-notifications": "cancel-malformed",
    "dies-of-odd-cancels": "cancel-malformed",
    "dies-of-reasons": "cancel-reason",
    "cancels-all": "cancel-one-of-many",
    "confuses-ids": "cancel-id-type",
    "one-at-a-time": "answers-while-busy",
    "progress-without-token": "progress-only-with-token",
    "progress-repeats": "progress-increases",
    "token-as-text": "progress-token-type",
    "no-coalescing": "progress-rate",
    "id-as-text": "ids-of-all-kinds",
    "dies-of-text": "line-not-json",
    "silent-on-errors": "line-not-json-error",
    "answers-unknown-methods": "method-unknown",
    "stays": "exit-idle",
}
"""The defects of `servers/faulty_server.py`, each with the scenario that finds it."""


@pytest.mark.parametrize(("fault", "found_by"), FAULTS.items())
async def test_torture_test_scenario_fails_for_the_server_with_the_defect_that_the_scenario_covers(
    fault: str, found_by: str
) -> None:
    command = Command([sys.executable, str(HERE / "servers" / "faulty_server.py"), fault])
    (scenario,) = [each for each in SERVER_SCENARIOS if each.id == found_by]
    outcome = await outcome_of(scenario, ServerUnderTest("legacy", command, NAMES))
    assert outcome.status == "failed", outcome.reason


@pytest.mark.parametrize("found_by", sorted(set(FAULTS.values()) - {"progress-rate"}))
async def test_torture_test_scenario_passes_for_a_server_without_the_defect(found_by: str) -> None:
    command = Command([sys.executable, str(HERE / "servers" / "faulty_server.py"), "none"])
    (scenario,) = [each for each in SERVER_SCENARIOS if each.id == found_by]
    outcome = await outcome_of(scenario, ServerUnderTest("legacy", command, NAMES, patience=PATIENCE))
    assert outcome.status == "passed", outcome.reason


def test_at_least_forty_torture_test_scenarios_exist_and_their_ids_are_unique() -> None:
    ids = [each.id for each in (*SERVER_SCENARIOS, *CLIENT_SCENARIOS)]
    assert len(ids) == len(set(ids)) >= 40
    for each in (*SERVER_SCENARIOS, *CLIENT_SCENARIOS):
        assert each.level in ("MUST", "SHOULD", "better")
        assert each.title.endswith(".")
        assert each.meaning.endswith(".")
        assert each.clause
        assert set(each.eras) <= set(ERAS)


@pytest.mark.parametrize(
    ("module", "scenarios"), [(server_scenarios, SERVER_SCENARIOS), (client_scenarios, CLIENT_SCENARIOS)]
)
def test_each_public_coroutine_in_a_torture_test_module_is_a_scenario(
    module: ModuleType, scenarios: list[Scenario]
) -> None:
    defined = {
        name
        for name, value in vars(module).items()
        if inspect.iscoroutinefunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert defined == {each.id.replace("-", "_") for each in scenarios}


async def test_search_for_the_torture_test_tools_returns_none_if_the_server_lacks_the_revision() -> None:
    assert await find_tools(Command(SERVER), "modern") == NAMES
    legacy_only = Command([sys.executable, str(HERE / "servers" / "faulty_server.py"), "none"])
    assert await find_tools(legacy_only, "modern") is None


async def torture(*words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "trio_mcp.cli", "torture", *words]
    with trio.fail_after(LIMIT):
        return await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)


async def test_torture_command_prints_json_and_exits_with_0_if_no_scenario_failed() -> None:
    ran = await torture("--only", "cancel-after", "--json", "--", *SERVER)
    assert (ran.returncode, ran.stderr) == (0, b"")
    found = json.loads(ran.stdout)
    assert {(each["era"], each["status"]) for each in found} == {("legacy", "passed"), ("modern", "passed")}


async def test_torture_command_explains_a_failure_and_exits_with_1() -> None:
    faulty = [sys.executable, str(HERE / "servers" / "faulty_server.py"), "answers-cancelled"]
    ran = await torture("--only", "cancel-no-response", "--", *faulty)
    assert ran.returncode == 1
    shown = ran.stdout.decode()
    assert "FAIL  SHOULD  legacy  cancel-no-response-legacy\n" in shown
    assert "the server sent 1 responses after the cancellation" in shown
    assert "SHOULD: 0 passed, 1 failed, 0 skipped" in shown, "it speaks one era"


async def test_torture_command_without_a_target_or_client_exits_with_2() -> None:
    assert (await torture()).returncode == 2


PAGE = Page("testing/torture.md")


def test_documentation_page_lists_the_tools_of_the_torture_scenarios() -> None:
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.text.split("## Test a client")[0], re.MULTILINE)) == TOOLS


async def test_torture_client_in_the_documentation_passes_the_scenarios(tmp_path: Path) -> None:
    (tmp_path / "tortured.py").write_text(PAGE.blocks["tortured"])
    (scenario,) = [each for each in CLIENT_SCENARIOS if each.id == "client-cancels"]
    under_test = ClientUnderTest(
        "modern", [sys.executable, str(tmp_path / "tortured.py"), "{server}"], patience=PATIENCE
    )
    outcome = await outcome_of(scenario, under_test)
    assert outcome.status == "passed", outcome.reason
