"""Makes: the servers and clients with tasks, ours and those of others, each a process of its own.

``mcp1`` is the last line of the official package with the tasks of 2025-11-25, ``typescript`` 1.x of the TypeScript
SDK, which has them, too, and ``fastmcp`` has the extension of 2026-07-28. The servers offer the same tools, and the
clients take the same steps, as far as they can.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.patience import PATIENCE
from tests.peers.journals import Journal
from tests.peers.reports import steps_in
from tests.peers.websocket.children import environment

__all__ = ["Makes"]

HERE = Path(__file__).parent


@attrs.frozen
class Makes:
    """The servers and clients of all makes."""

    request: pytest.FixtureRequest

    def server(self, make: str) -> list[str]:
        """The command that runs the server of ``make`` over stdio."""
        return self._script(make, "server")

    def run_client(self, make: str, over: str, server: list[str], journal: Journal) -> dict[str, dict[str, Any]]:
        """What the client of ``make`` saw, step by step, at ``server``: a command, or a URL."""
        done = subprocess.run(
            [*self._script(make, "client"), over, *server],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment(journal),
        )
        assert done.returncode == 0, done.stderr
        return steps_in(done.stdout.splitlines())

    def _script(self, make: str, role: str) -> list[str]:
        if make == "typescript":
            return ["node", str(self.request.getfixturevalue("tasks_scripts") / f"tasks_{role}.mjs")]
        environments = {"mcp1": "peer_python", "fastmcp": "fastmcp_tasks_python"}
        python = str(self.request.getfixturevalue(environments[make])) if make in environments else sys.executable
        return [python, "-W", "ignore", str(HERE / f"{role}s" / f"{make}_tasks_{role}.py")]
