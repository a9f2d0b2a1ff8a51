"""The environment of the frameworks, which none of them shares with the test environment: they need ``mcp`` 1.x."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.peers.installed import install, installed_once

PACKAGES = {"pydantic-ai-slim[mcp]": "2.68.0", "openai-agents": "0.24.0", "langchain-mcp-adapters": "0.3.2"}


@pytest.fixture(scope="session")
def agents_python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of that environment, which is made once and kept in pytest's cache."""
    name = f"agents-{'-'.join(PACKAGES.values())}-python-{sys.version_info.major}.{sys.version_info.minor}"
    return installed_once(request.config, name, make) / "bin" / "python"


def make(path: Path) -> None:
    what = "the frameworks of agents"
    install(what, [sys.executable, "-m", "venv", path])
    packages = [f"{name}=={version}" for name, version in PACKAGES.items()]
    uv = Path(sys.executable).with_name("uv")  # takes a tenth of the time of pip, where it is there
    pip = [uv, "pip", "install", "--python", path / "bin" / "python"]
    if not uv.exists():
        pip = [path / "bin" / "python", "-m", "pip", "install", "--no-input", "--retries=1"]
    install(what, [*pip, "--quiet", *packages])
