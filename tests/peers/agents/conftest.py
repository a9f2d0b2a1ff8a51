"""The environments of the frameworks, one each: langchain's adapters need ``mcp`` 1.x, the others take 2.x. Each has
this package, too, for hosts that call by `trio_mcp.aio`; one has the clients of two providers of models."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.installed import python_with

ROOT = Path(__file__).parents[3]
PACKAGES = {
    "pydantic_ai": ("pydantic-ai-slim[mcp]==2.68.0", "mcp==2.3.0"),
    "openai_agents": ("openai-agents==0.24.0", "mcp==2.3.0", "openai==3.57.0", "anthropic==2.14.0"),
    "langchain": ("langchain-mcp-adapters==0.3.2", "mcp==1.30.0", "langchain==1.5.0"),
}


@pytest.fixture(scope="session")
def python_of(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Return the interpreter of a framework's environment."""

    def python(framework: str) -> Path:
        packages = PACKAGES[framework]
        name = "-".join(re.sub(r"\[.*\]|==", "-", package) for package in packages).replace("--", "-")
        return python_with(request.config, f"{name}-ours", *packages, "--editable", str(ROOT))

    return python
