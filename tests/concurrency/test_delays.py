"""Retry delays with backoff and jitter."""

from __future__ import annotations

import pytest

from trio_mcp.concurrency.time_limits import growing_delay


def never() -> float:
    return 0.0


def test_backoff_delay_doubles_up_to_its_maximum() -> None:
    delays = [growing_delay(attempt, first=0.5, longest=5, jitter=0.2, random=never) for attempt in range(1, 7)]
    assert delays == [0.5, 1, 2, 4, 5, 5]


@pytest.mark.parametrize(("random", "delay"), [(0.0, 2.0), (0.5, 1.75), (1.0, 1.5)])
def test_random_jitter_shortens_the_backoff_delay_by_at_most_the_given_fraction(random: float, delay: float) -> None:
    assert growing_delay(2, first=1, longest=60, jitter=0.25, random=lambda: random) == delay


def test_backoff_delay_at_its_maximum_is_also_shortened_at_random() -> None:
    assert growing_delay(100, first=1, longest=60, jitter=0.5, random=lambda: 1.0) == 30


def test_backoff_delay_after_a_million_attempts_equals_its_maximum() -> None:
    assert growing_delay(10**6, first=1e-3, longest=60, jitter=0.5, random=never) == 60


def test_backoff_delay_uses_the_system_random_generator_by_default() -> None:
    assert 15 <= growing_delay(5, first=1, longest=60, jitter=1 / 16) <= 16
