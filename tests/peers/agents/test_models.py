"""The recipes of `docs/clients/agent-frameworks.md` for sampling run with the clients of the providers, which call a
local stand-in for each provider."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.peers.agents.page import blocks_of_the_page
from tests.peers.reports import steps_in

HOST = Path(__file__).with_name("model_host.py")
RECIPES = blocks_of_the_page()
USER = {"role": "user", "content": "Which?"}
REQUESTS: dict[str, Any] = {
    "claude": {"model": "claude-sonnet-4-5", "max_tokens": 10, "system": "Be short.", "messages": [USER]},
    "gpt": {
        "model": "gpt-5",
        "max_completion_tokens": 10,
        "messages": [{"role": "system", "content": "Be short."}, USER],
    },
}


@pytest.mark.parametrize("name", REQUESTS)
def test_cancelled_sampling_handler_of_the_documentation_closes_the_http_request(
    name: str, python_of: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / f"{name}.py").write_text(RECIPES[name])
    command = [python_of("openai_agents"), "-W", "ignore", HOST, tmp_path, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    steps = {step: said["saw"] for step, said in steps_in(done.stdout.splitlines()).items()}
    assert steps == {
        "request": REQUESTS[name],
        "answer": "Blue. told maxTokens",
        "refused": "AuthenticationError",
        "closed": True,
    }


@pytest.mark.parametrize("name", REQUESTS)
def test_documented_sampling_handler_has_at_most_five_statements(name: str) -> None:
    (function,) = (each for each in ast.parse(RECIPES[name]).body if isinstance(each, ast.AsyncFunctionDef))
    assert len(function.body) <= 5
