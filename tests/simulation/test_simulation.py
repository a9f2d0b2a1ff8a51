"""Fleets that are simulated for a million steps do nothing that they may not."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.simulation.chaos import simulate

STEPS = 1_000_000
PARTS = 10
EACH = 20_000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing of a storage that fails at each turn."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(PARTS))
def test_simulation_of_replicas_finds_no_faults_in_a_million_steps(part: int) -> None:
    steps, seed = 0, 1000 * (part + 1)
    happened = Counter[str]()
    while steps < STEPS / PARTS:
        report = simulate(seed, EACH)
        assert not report.faults, f"seed {seed}: {report.faults}"
        steps, seed, happened = steps + report.steps, seed + 1, happened + report.outcomes
    for outcome in ("echo", "asked", "left", "accepted", "told", "session echo", "resumed to the end", "session asked"):
        assert happened[outcome], f"no {outcome}: the simulation shows nothing of it"


def test_simulation_with_the_same_seed_is_reproducible() -> None:
    assert simulate(7, 5000) == simulate(7, 5000)
