"""The environments of the frameworks, one each: langchain's adapters need ``mcp`` 1.x, the others take 2.x."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.installed import python_with

PACKAGES = {
    "pydantic_ai": ("pydantic-ai-slim[mcp]==2.68.0", "mcp==2.3.0"),
    "openai_agents": ("openai-agents==0.24.0", "mcp==2.3.0"),
    "langchain": ("langchain-mcp-adapters==0.3.2", "mcp==1.30.0"),
}


@pytest.fixture(scope="session")
def python_of(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Return the interpreter of a framework's environment."""

    def python(framework: str) -> Path:
        package, mcp = PACKAGES[framework]
        name = f"{package.partition('[')[0].partition('==')[0]}-{package.rpartition('==')[2]}-{mcp.replace('==', '-')}"
        return python_with(request.config, name, package, mcp)

    return python
