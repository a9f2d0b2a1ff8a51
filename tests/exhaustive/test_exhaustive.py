"""Every order of events in the worlds of `tests.exhaustive.parts`, at the sizes that CI explores."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.exhaustive.parts import PARTS


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing of a store that fails."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", PARTS)
def test_no_order_of_events_breaks_an_invariant(name: str) -> None:
    report = PARTS[name].explore()
    assert report.fault is None
    assert report.is_complete
    assert report.ends
