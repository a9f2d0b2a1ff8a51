"""Message patterns: matching, and descriptions of differences."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest

from trio_mcp.testing.scripted_peer import differences, shown


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ({"id": 1, "result": {}}, {"result": {}, "id": 1}),
        ({"id": ..., "result": ...}, {"id": "x", "result": None}),
        ({"id": 1, ...: ...}, {"id": 1, "result": {}, "more": 2}),
        ({...: ...}, {}),
        ([1, ..., {"a": 2}], [1, "anything", {"a": 2}]),
        ({"a": {"b": [{...: ...}]}}, {"a": {"b": [{"c": 1}]}}),
        (ANY, {"a": 1}),
        ({"x": pytest.approx(0.3)}, {"x": 0.1 + 0.2}),
        (..., None),
    ],
)
def test_comparison_of_a_message_with_a_matching_pattern_reports_no_differences(pattern: Any, message: Any) -> None:
    assert differences(pattern, message) == []


@pytest.mark.parametrize(
    ("pattern", "message", "told"),
    [
        ({"a": 1}, {}, "$.a: expected 1, but it is missing"),
        ({}, {"a": 1}, "$.a: not expected, got 1"),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "$.a.b[1]: expected 2, got 3"),
        ({"a": [1]}, {"a": [1, 2]}, "$.a: expected [1], got [1,2]"),
        ({"a": {...: ...}}, {"a": None}, "$.a: expected {...}, got null"),
        ({"a": 1, ...: ...}, {"a": 2, "b": 3}, "$.a: expected 1, got 2"),
        ([], {}, "$: expected [], got {}"),
        (pytest.approx(1), 2, "$: expected 1 ± 1.0e-06, got 2"),
    ],
)
def test_difference_from_a_message_pattern_is_reported_with_its_path(pattern: Any, message: Any, told: str) -> None:
    assert differences(pattern, message) == [told.replace("[1,2]", "[1, 2]")]


JSON_TYPES = [1, 1.0, "1", True, None, [1], {"1": 1}]


@pytest.mark.parametrize("got", JSON_TYPES)
@pytest.mark.parametrize("expected", JSON_TYPES)
def test_values_of_different_json_types_never_match_in_a_message_pattern(expected: Any, got: Any) -> None:
    assert (differences(expected, got) == []) == (expected is got)


def test_every_difference_from_a_message_pattern_is_reported() -> None:
    assert len(differences({"a": 1, "b": 2, "c": 3}, {"a": 9, "b": 9, "d": 9})) == 4


def test_message_pattern_is_shown_as_json_with_ellipses() -> None:
    assert shown({"id": ..., "a": [None, True, "x"], ...: ...}) == '{"id": ..., "a": [null, true, "x"], ...}'


def test_long_values_are_truncated_in_reported_differences() -> None:
    (told,) = differences({"a": "x"}, {"a": "y" * 5000})
    assert len(told) < 500
    assert "(5002 characters)" in told
