"""Delays before what failed is tried again."""

from __future__ import annotations

import pytest

from trio_mcp.concurrency.time_limits import growing_delay


def never() -> float:
    return 0.0


def test_each_delay_is_twice_as_long_as_the_one_before_up_to_the_longest() -> None:
    delays = [growing_delay(attempt, first=0.5, longest=5, jitter=0.2, random=never) for attempt in range(1, 7)]
    assert delays == [0.5, 1, 2, 4, 5, 5]


@pytest.mark.parametrize(("random", "delay"), [(0.0, 2.0), (0.5, 1.75), (1.0, 1.5)])
def test_a_delay_is_shorter_by_chance_and_by_no_more_than_its_jitter(random: float, delay: float) -> None:
    assert growing_delay(2, first=1, longest=60, jitter=0.25, random=lambda: random) == delay


def test_the_longest_delay_is_shorter_by_chance_too() -> None:
    assert growing_delay(100, first=1, longest=60, jitter=0.5, random=lambda: 1.0) == 30


def test_an_attempt_after_very_many_waits_no_longer_than_the_longest() -> None:
    assert growing_delay(10**6, first=1e-3, longest=60, jitter=0.5, random=never) == 60


def test_chance_is_that_of_the_machine_unless_told() -> None:
    assert 15 <= growing_delay(5, first=1, longest=60, jitter=1 / 16) <= 16
