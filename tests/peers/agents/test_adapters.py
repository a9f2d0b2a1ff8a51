"""The adapters of `docs/clients/agent-frameworks.md` run with the real frameworks: what their models are given, and
whether a cancelled run of an agent cancels the handler in the other process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.patience import PATIENCE
from tests.peers.agents.page import blocks_of_the_page
from tests.peers.journals import Journal
from tests.peers.reports import steps_in

HERE = Path(__file__).parent
SERVER = [sys.executable, str(HERE / "shop_server.py")]
BLOCKS = blocks_of_the_page()
ADAPTERS = {"openai_tools": "openai_agents", "pydantic_ai_tools": "pydantic_ai", "langchain_tools": "langchain"}
RECEIPT = {"text": "small soup with 5 g", "plates": 2}


@attrs.frozen
class Run:
    """What the model of a framework was given, and what the server noted."""

    adapter: str
    saw: dict[str, Any]
    journal: Journal


@pytest.fixture(scope="module", params=ADAPTERS)
def run(
    request: pytest.FixtureRequest, python_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Run:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    (folder / f"{name}.py").write_text(BLOCKS[name])
    journal = Journal(folder / "journal")
    command = [python_of(ADAPTERS[name]), "-W", "ignore", HERE / "adapter_host.py", folder, name, *SERVER]
    env = {**os.environ, **journal.env, "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=env)
    assert done.returncode == 0, done.stderr
    steps = {step: said["saw"] for step, said in steps_in(done.stdout.splitlines()).items()}
    return Run(name, steps, journal)


def test_cancelled_agent_run_cancels_the_server_handler_and_the_next_run_succeeds(run: Run) -> None:
    run.journal.wait_for("revision 2026-07-28")
    assert run.saw["cancelled"] == "cancelled"
    assert run.saw["handler"] == "ended"
    assert run.saw["afterwards"] == run.saw["order"]


def test_language_model_receives_tool_results_and_tool_failures(run: Run) -> None:
    order = run.saw["order"]
    assert (order if isinstance(order, dict) else json.loads(order)) == RECEIPT
    assert run.saw["fail"].endswith("sold out")


def test_agent_calls_a_group_tool_by_its_prefixed_name(run: Run) -> None:
    assert run.saw["group"] == run.saw["order"]


@pytest.mark.parametrize("name", ADAPTERS)
def test_documented_adapter_for_each_agent_framework_has_at_most_30_lines(name: str) -> None:
    assert len(BLOCKS[name].splitlines()) <= 30
