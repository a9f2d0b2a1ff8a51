"""What a task costs that waits: ten thousand have to fit into one process."""

from __future__ import annotations

import pytest
from benchmarks.tasks.waiting import KINDS, traced

MOST = 12 * 1024
SPREAD = 1.08
"""What is resident takes so many times what Python has allocated: its arenas have gaps."""
THE_LARGEST = "HTTP, 2026-07-28, input required"


async def test_a_task_that_waits_takes_at_most_12_kib() -> None:
    assert await traced(KINDS[THE_LARGEST], 1000) * SPREAD < MOST


@pytest.mark.parametrize("title", KINDS)
async def test_none_takes_more_that_comes_another_way_or_waits_for_something_else(title: str) -> None:
    assert await traced(KINDS[title], 100) * SPREAD < MOST
