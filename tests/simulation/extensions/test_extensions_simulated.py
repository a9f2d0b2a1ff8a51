"""Clients and servers with extensions keep their promises for a million steps, whatever is cut or ends."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.simulation.extensions.world import simulate

STEPS = 1_000_000
PARTS = 10
EACH = 20_000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing of handlers that overrun their grace."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(PARTS))
def test_simulation_of_extension_calls_and_notifications_finds_no_faults_in_a_million_steps(part: int) -> None:
    steps, seed = 0, 1000 * (part + 1)
    happened = Counter[str]()
    while steps < STEPS / PARTS:
        report = simulate(seed, EACH)
        assert not report.faults, f"seed {seed}: {report.faults}"
        steps, seed, happened = steps + report.steps, seed + 1, happened + report.outcomes
    for outcome in (
        *("answered", "left", "told", "heard", "asked", "settled", "cut", "ended", "cut behind", "error -7"),
        *(f"ended {state}" for state in ("stopped", "finished", "overran", "unsent", "relayed")),
    ):
        assert happened[outcome], f"no {outcome}: the simulation shows nothing of it"
