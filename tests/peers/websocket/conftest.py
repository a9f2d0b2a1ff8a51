"""The environment of the peer: ``mcp`` 1.30.0, the last release that has WebSocket, beside which 2.x cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.peers.installed import install, installed_once

VERSION = "1.30.0"
PACKAGES = [f"mcp[ws]=={VERSION}", "uvicorn", "starlette", "websockets"]


@pytest.fixture(scope="session")
def peer_python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of that environment, which is made once and kept in pytest's cache."""
    name = f"mcp-{VERSION}-python-{sys.version_info.major}.{sys.version_info.minor}"
    return installed_once(request.config, name, make) / "bin" / "python"


def make(path: Path) -> None:
    what = f"mcp {VERSION}"
    install(what, [sys.executable, "-m", "venv", path])
    pip = [path / "bin" / "python", "-m", "pip"]
    install(what, [*pip, "install", "--quiet", "--no-input", "--retries=1", *PACKAGES])
