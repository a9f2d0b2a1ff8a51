"""BoundedDict: a dict that drops its oldest entries beyond its limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp.concurrency.bounded import BoundedDict


def test_bounded_dict_drops_the_oldest_entry() -> None:
    latest = BoundedDict[str, int](2)
    for number, key in enumerate("abc"):
        latest[key] = number

    assert list(latest.items()) == [("b", 1), ("c", 2)]


def test_bounded_dict_entry_set_again_becomes_the_newest() -> None:
    latest = BoundedDict[str, int](2)
    for number, key in enumerate("abac"):
        latest[key] = number

    assert list(latest.items()) == [("a", 2), ("c", 3)]


def test_reading_a_bounded_dict_entry_does_not_make_it_newer() -> None:
    latest = BoundedDict[str, int](2)
    latest["a"] = latest["b"] = 1
    assert latest["a"] == latest.get("a") == 1
    latest["c"] = 2

    assert list(latest) == ["b", "c"]


def test_bounded_dict_of_size_zero_keeps_no_entries() -> None:
    latest = BoundedDict[str, int](0)
    latest["a"] = 1

    assert not latest


@given(st.integers(0, 5), st.lists(st.tuples(st.integers(0, 8), st.booleans())))
def test_bounded_dict_keeps_the_newest_entries_in_random_use(most: int, steps: list[tuple[int, bool]]) -> None:
    latest, model = BoundedDict[int, int](most), list[int]()
    for key, is_set in steps:
        model = [each for each in model if each != key]
        if is_set:
            latest[key] = key
            model = [*model, key][-most:] if most else []
        else:
            latest.pop(key, None)
        assert list(latest) == model


@pytest.mark.parametrize("key", ["a", "b"])
def test_bounded_dict_entries_can_be_deleted(key: str) -> None:
    latest = BoundedDict[str, int](2)
    latest["a"] = latest["b"] = 1
    del latest[key]
    latest["c"] = 1

    assert list(latest) == [*({"a", "b"} - {key}), "c"]
