"""Every order of events in the worlds of `tests.exhaustive.parts`, at the sizes that CI explores; and the defects of
`tests.exhaustive.defects`, which the same worlds find."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.exhaustive.defects import DEFECTS, Defect, changed
from tests.exhaustive.parts import PARTS

PAGE = (Path(__file__).parent.parent.parent / "docs" / "proof.md").read_text()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing of a store that fails."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", PARTS)
def test_exhaustive_exploration_finds_no_order_of_events_that_breaks_an_invariant(name: str) -> None:
    report = PARTS[name].explore()
    assert report.fault is None
    assert report.is_complete
    assert report.ends
    assert PARTS[name].row(report) in PAGE.splitlines()


def test_documentation_page_states_the_number_of_defects_that_are_patched_into_the_code() -> None:
    assert f"contains {len(DEFECTS)} small defects" in PAGE


@pytest.mark.parametrize("defect", DEFECTS, ids=[each.words for each in DEFECTS])
def test_exhaustive_exploration_detects_each_defect_that_is_patched_into_the_code(
    defect: Defect, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = PARTS[defect.part]
    assert defect.size <= part.size  # so that the test above shows that the code without the defect has no fault
    for owner, name, old, new in defect.patches:
        monkeypatch.setattr(owner, name, changed(owner, name, old, new))
    fault = part.explore(defect.size).fault
    assert fault is not None
    assert "Error(" not in fault.words  # an invariant finds it, and no crash of the patched function
