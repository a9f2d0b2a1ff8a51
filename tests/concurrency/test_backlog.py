"""What waits for a slower consumer, within bounds of items and of bytes."""

from __future__ import annotations

import pytest

from trio_mcp.concurrency.bounded import Backlog


def taken(backlog: Backlog[str]) -> list[str]:
    return [backlog.pop() for _ in range(len(backlog))]


def test_items_are_taken_in_the_order_in_which_they_were_put() -> None:
    backlog = Backlog[str](3, 100)
    assert [backlog.put(item, 10) for item in "abc"] == [0, 0, 0]
    assert len(backlog) == 3
    assert taken(backlog) == ["a", "b", "c"]
    assert len(backlog) == 0


def test_the_oldest_makes_room_for_one_item_more_than_there_may_be() -> None:
    backlog = Backlog[str](2, 100)
    assert [backlog.put(item, 1) for item in "abc"] == [0, 0, 1]
    assert taken(backlog) == ["b", "c"]


def test_items_may_take_exactly_the_bytes_there_may_be_and_not_one_more() -> None:
    backlog = Backlog[str](10, 100)
    assert [backlog.put(item, 50) for item in "ab"] == [0, 0]
    assert backlog.put("c", 1) == 1
    assert taken(backlog) == ["b", "c"]


def test_as_many_of_the_oldest_as_needed_make_room_for_a_large_item() -> None:
    backlog = Backlog[str](10, 100)
    for item in "abcd":
        backlog.put(item, 25)
    assert backlog.put("large", 60) == 3
    assert taken(backlog) == ["d", "large"]


def test_the_newest_is_kept_however_large_it_is() -> None:
    backlog = Backlog[str](10, 100)
    backlog.put("a", 1)
    assert backlog.put("huge", 1000) == 1
    assert backlog.put("b", 1) == 1
    assert taken(backlog) == ["b"]


def test_what_was_taken_leaves_its_bytes_to_others() -> None:
    backlog = Backlog[str](10, 100)
    for _ in range(5):
        backlog.put("a", 100)
        backlog.pop()
    assert [backlog.put(item, 50) for item in "bc"] == [0, 0]


def test_nothing_is_taken_where_nothing_waits() -> None:
    with pytest.raises(IndexError):
        Backlog[str](1, 1).pop()
