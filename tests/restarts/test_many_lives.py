"""The state machine of ``tests/tasks``, with many more lives."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks.test_state_machine import live, steps_of_servers


@settings(max_examples=500)
@given(steps_of_servers(), st.sampled_from([0.0, 0.04]))
def test_each_task_ends_once_in_any_of_many_lives(steps: list[tuple[Any, ...]], slowness: float) -> None:
    live(steps, slowness)
