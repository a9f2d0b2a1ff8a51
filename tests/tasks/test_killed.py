"""Servers that share a file of tasks are killed with SIGKILL, at any moment. ``tests/restarts`` does so 200 times."""

from __future__ import annotations

from pathlib import Path

from tests.restarts.killing import Killing


async def test_servers_lose_no_task_when_they_are_killed(tmp_path: Path) -> None:
    killing = Killing(tmp_path, seed=1)
    await killing.run(8)
    killing.check()
