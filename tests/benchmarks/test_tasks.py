"""Benchmarks of tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.tasks.beside import noticed
from benchmarks.tasks.polling import WAYS, lived, looked_at
from benchmarks.tasks.ways import over_http


@pytest.mark.parametrize("title", ["stdio, 2025-11-25", "HTTP, 2026-07-28"])
def test_task_benchmark_measures_the_time_of_a_poll_and_the_time_from_call_to_result(
    tmp_path: Path, title: str
) -> None:
    with WAYS[title](str(tmp_path / "tasks.db")) as server:
        looks, lives = looked_at(server, 50), lived(server, 50)
    assert (list(looks), list(lives)) == (["call", "get, working", "get, ended"], ["call", "task"])
    assert all(wall > 0 and cpu > 0 for wall, cpu in (*looks.values(), *lives.values()))


def test_task_benchmark_measures_how_a_polling_client_slows_down_other_clients() -> None:
    with over_http() as server:
        found = noticed(server, 20, 0.1, rounds=1)
    assert list(found) == ["nothing", "calls", "polls"]
    assert all(tail >= middle > 0 for middle, tail in found.values())
