"""The programs of all makes, which find their packages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.peers.installed import python_with
from tests.peers.tasks.makes import HERE, Makes
from tests.peers.typescript import conftest as typescript
from tests.peers.websocket import conftest as websocket

peer_python = websocket.peer_python
scripts = typescript.scripts


FASTMCP_TASKS = "4.1.4"
"""The newest release of fastmcp whose tasks can be installed: 4.2 requires tasks of 4.2, which isn't released yet."""


@pytest.fixture(scope="session")
def fastmcp_tasks_python(request: pytest.FixtureRequest) -> Path:
    return python_with(request.config, f"fastmcp-tasks-{FASTMCP_TASKS}", f"fastmcp[tasks]=={FASTMCP_TASKS}")


@pytest.fixture(scope="session")
def tasks_scripts(scripts: Path) -> Path:
    """The folder of all scripts that run on Node."""
    for script in (HERE / "typescript").glob("*.mjs"):
        shutil.copy(script, scripts)
    return scripts


@pytest.fixture(scope="session")
def makes(request: pytest.FixtureRequest) -> Makes:
    return Makes(request)
