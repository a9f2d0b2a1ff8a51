"""Servers that share a file of tasks are killed 200 times. The default suite does the same eight times."""

from __future__ import annotations

from pathlib import Path

from tests.restarts.killing import Killing


async def test_servers_lose_no_task_if_they_are_killed_200_times(tmp_path: Path) -> None:
    killing = Killing(tmp_path, seed=1)
    await killing.run(200)
    killing.check()
