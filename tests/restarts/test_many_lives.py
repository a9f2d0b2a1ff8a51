"""The state machine of ``tests/tasks``, with many more lives."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.tasks.test_state_machine import live, steps_of_servers


# Shrinking a failure takes longer than a test may, and its interrupt would hide the failure.
@settings(max_examples=500, phases=[Phase.explicit, Phase.generate])
@given(steps_of_servers, st.sampled_from([0.0, 0.04]))
def test_each_task_ends_exactly_once_although_servers_fail_at_random(
    steps: list[tuple[Any, ...]], slowness: float
) -> None:
    live(steps, slowness)
