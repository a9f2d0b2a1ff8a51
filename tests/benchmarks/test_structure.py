"""Comparison of structure counts with the recorded ones."""

from __future__ import annotations

import pytest
from benchmarks.structure import worse

RECORDED = {"files": 3, "code lines": 100}


def test_code_structure_check_accepts_file_and_line_counts_up_to_the_recorded_counts() -> None:
    assert worse(RECORDED, RECORDED) == []
    assert worse({"files": 2, "code lines": 0}, RECORDED) == []


@pytest.mark.parametrize(
    ("numbers", "line"),
    [
        ({"files": 4, "code lines": 100}, "files: 4, recorded 3"),
        ({"code lines": 100}, "files: not counted any more, recorded 3"),
        ({**RECORDED, "folders": 1}, "folders: 1, recorded nothing"),
    ],
)
def test_code_structure_check_reports_a_file_or_line_count_that_is_larger_or_missing(
    numbers: dict[str, int], line: str
) -> None:
    assert worse(numbers, RECORDED) == [line]
