"""A queue with limits on items and bytes, which drops its oldest items."""

from __future__ import annotations

import pytest

from trio_mcp.concurrency.bounded import Backlog


def taken(backlog: Backlog[str]) -> list[str]:
    return [backlog.pop() for _ in range(len(backlog))]


def test_backlog_queue_returns_items_in_order() -> None:
    backlog = Backlog[str](3, 100)
    assert [backlog.put(item, 10) for item in "abc"] == [0, 0, 0]
    assert len(backlog) == 3
    assert taken(backlog) == ["a", "b", "c"]
    assert len(backlog) == 0


def test_backlog_drops_the_oldest_item_beyond_the_item_limit() -> None:
    backlog = Backlog[str](2, 100)
    assert [backlog.put(item, 1) for item in "abc"] == [0, 0, 1]
    assert taken(backlog) == ["b", "c"]


def test_backlog_drops_the_oldest_item_if_the_byte_limit_is_exceeded_by_one_byte() -> None:
    backlog = Backlog[str](10, 100)
    assert [backlog.put(item, 50) for item in "ab"] == [0, 0]
    assert backlog.put("c", 1) == 1
    assert taken(backlog) == ["b", "c"]


def test_backlog_drops_several_old_items_to_make_room_for_a_large_new_item() -> None:
    backlog = Backlog[str](10, 100)
    for item in "abcd":
        backlog.put(item, 25)
    assert backlog.put("large", 60) == 3
    assert taken(backlog) == ["d", "large"]


def test_backlog_keeps_its_newest_item_even_if_the_item_exceeds_the_byte_limit() -> None:
    backlog = Backlog[str](10, 100)
    backlog.put("a", 1)
    assert backlog.put("huge", 1000) == 1
    assert backlog.put("b", 1) == 1
    assert taken(backlog) == ["b"]


def test_item_taken_from_the_backlog_no_longer_counts_towards_the_byte_limit() -> None:
    backlog = Backlog[str](10, 100)
    for _ in range(5):
        backlog.put("a", 100)
        backlog.pop()
    assert [backlog.put(item, 50) for item in "bc"] == [0, 0]


def test_backlog_pop_raises_index_error_if_the_backlog_is_empty() -> None:
    with pytest.raises(IndexError):
        Backlog[str](1, 1).pop()
