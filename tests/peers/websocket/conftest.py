"""The environment of the peer: ``mcp`` 1.30.0, the last release that has WebSocket, beside which 2.x cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.peers.installed import python_with

VERSION = "1.30.0"


@pytest.fixture(scope="session")
def peer_python(request: pytest.FixtureRequest) -> Path:
    packages = [f"mcp[ws]=={VERSION}", "uvicorn", "starlette", "websockets"]
    return python_with(request.config, f"mcp-{VERSION}", *packages)
