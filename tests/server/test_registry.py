"""Registries, their pages and their cursors."""

from __future__ import annotations

import base64

import pytest

from trio_mcp import CodedError
from trio_mcp.server.registration import Registry


def listing(*names: str, page_size: int | None = 2) -> Registry[str]:
    made: Registry[str] = Registry("tool", page_size)
    for name in names:
        made.add(name, name.upper())
    return made


def walk(pages: Registry[str]) -> list[list[str]]:
    seen: list[list[str]] = []
    cursor: str | None = None
    while True:
        page, cursor = pages.page(cursor)
        seen.append(page)
        if cursor is None:
            return seen


def test_pages_follow_the_order_of_adding() -> None:
    assert walk(listing("c", "a", "b")) == [["C", "A"], ["B"]]


def test_an_exact_page_has_no_cursor() -> None:
    assert walk(listing("a", "b")) == [["A", "B"]]


def test_without_a_page_size_there_is_one_page() -> None:
    assert walk(listing("a", "b", "c", page_size=None)) == [["A", "B", "C"]]


def test_an_empty_listing_is_one_empty_page() -> None:
    assert walk(listing()) == [[]]


def test_a_cursor_stays_good_when_what_it_named_is_removed() -> None:
    pages = listing("a", "b", "c")
    _, cursor = pages.page(None)
    pages.remove("b")
    assert pages.page(cursor) == (["C"], None)


def test_a_name_can_be_taken_once() -> None:
    with pytest.raises(ValueError, match="'a' already"):
        listing("a", "a")


def test_a_name_is_free_after_its_removal() -> None:
    pages = listing("a")
    pages.remove("a")
    pages.add("a", "again")
    assert list(pages) == ["again"]


def test_removing_what_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError, match="nobody"):
        listing().remove("nobody")


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "\u2028",
        base64.urlsafe_b64encode(b"prompt:1").decode(),
        base64.urlsafe_b64encode("tool:²".encode()).decode(),
    ],
)
def test_a_foreign_cursor_is_invalid_params(cursor: str) -> None:
    with pytest.raises(CodedError) as caught:
        listing("a").page(cursor)
    assert caught.value.code == -32602
