"""What a task costs that waits, since ten thousand have to fit into one process, and what a look at one costs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest
from benchmarks.budget.counting import counting
from benchmarks.tasks import messages
from benchmarks.tasks.lines import TaskLines, open_lines
from benchmarks.tasks.messages import Form
from benchmarks.tasks.waiting import KINDS, traced

MOST = 12 * 1024
TASKS = 250
"""What one more task takes is the same for each of them: tables that double are worth a few bytes."""
SPREAD = 1.08
"""What is resident takes so many times what Python has allocated: its arenas have gaps."""
THE_LARGEST = "HTTP, 2026-07-28, input required"
WHERE_IT_COUNTS = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="see tests/benchmarks/test_budget.py")


async def test_task_that_waits_uses_at_most_12_kib_of_memory() -> None:
    assert await traced(KINDS[THE_LARGEST], TASKS) * SPREAD < MOST


@pytest.mark.parametrize("title", sorted(set(KINDS) - {THE_LARGEST}))
async def test_waiting_task_stays_below_the_memory_limit_whatever_it_waits_for(title: str) -> None:
    assert await traced(KINDS[title], TASKS) * SPREAD < MOST


async def _instructions(way: TaskLines, request: Callable[[int], bytes]) -> float:
    """What one request executes in our own files, once all that is done once has been done."""
    await way.ask(request, 10)
    with counting() as count:
        await way.ask(request, 200)
    return count.instructions / 200


@WHERE_IT_COUNTS
@pytest.mark.parametrize("form", ["core", "extension"])
async def test_tasks_get_request_executes_at_most_1_3_times_the_instructions_of_a_tool_call(form: Form) -> None:
    async with open_lines(form) as way:
        working, ended = await way.start("sleep"), await way.start("echo_later")
        call = await _instructions(way, lambda number: messages.call(form, number, "echo", {"text": "x"}, task=False))
        for task_id in (working, ended):
            get = partial(messages.request, form, method="tasks/get", params={"taskId": task_id})
            look = await _instructions(way, get)
            assert look <= 1.3 * call, f"{look} beside {call}"
