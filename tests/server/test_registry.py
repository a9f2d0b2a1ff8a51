"""Registries, their pages and their cursors."""

from __future__ import annotations

import base64

import attrs
import pytest

from trio_mcp import CodedError
from trio_mcp.runtime.peer import UNKNOWN_PEER, Peer
from trio_mcp.server.offers.registration import Offer, Registry
from trio_mcp.server.options import Visible


@attrs.frozen
class Thing(Offer):
    text: str
    scopes: frozenset[str] = frozenset()
    visible: Visible | None = None
    tags: frozenset[str] = frozenset()


def listing(*names: str, page_size: int | None = 2) -> Registry[Thing]:
    made: Registry[Thing] = Registry("tool", page_size)
    for name in names:
        made.add(name, Thing(name.upper()))
    return made


def walk(pages: Registry[Thing], peer: Peer = UNKNOWN_PEER) -> list[list[str]]:
    seen: list[list[str]] = []
    cursor: str | None = None
    while True:
        page, cursor = pages.page(cursor, peer)
        seen.append([thing.text for thing in page])
        if cursor is None:
            return seen


def test_list_pages_contain_items_in_order_of_registration() -> None:
    assert walk(listing("c", "a", "b")) == [["C", "A"], ["B"]]


def test_last_list_page_has_no_next_cursor_even_if_it_is_full() -> None:
    assert walk(listing("a", "b")) == [["A", "B"]]


def test_list_is_sent_as_one_page_if_no_page_size_is_set() -> None:
    assert walk(listing("a", "b", "c", page_size=None)) == [["A", "B", "C"]]


def test_empty_list_is_sent_as_one_empty_page() -> None:
    assert walk(listing()) == [[]]


def test_list_cursor_stays_valid_after_the_item_at_the_cursor_is_removed() -> None:
    pages = listing("a", "b", "c")
    _, cursor = pages.page(None, UNKNOWN_PEER)
    pages.remove("b")
    assert pages.page(cursor, UNKNOWN_PEER) == ([Thing("C")], None)


def test_registering_two_items_with_the_same_name_raises() -> None:
    with pytest.raises(ValueError, match=r"already a .* named 'a'"):
        listing("a", "a")


def test_name_of_a_removed_list_item_can_be_registered_again() -> None:
    pages = listing("a")
    pages.remove("a")
    pages.add("a", Thing("again"))
    assert list(pages) == [Thing("again")]


def test_removing_an_item_with_an_unknown_name_raises() -> None:
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
def test_task_list_request_with_an_invalid_cursor_gets_error_invalid_params(cursor: str) -> None:
    with pytest.raises(CodedError) as caught:
        listing("a").page(cursor, UNKNOWN_PEER)
    assert caught.value.code == -32602


def test_list_pages_are_filled_with_items_visible_to_the_caller() -> None:
    pages = listing("a", "b", "c", "d", "e")
    asked: list[str] = []

    def is_seen(_: object) -> bool:
        asked.append("asked")
        return False

    pages.add("hidden", Thing("HIDDEN", visible=is_seen))
    pages.add("f", Thing("F", visible=lambda auth: auth is None))
    assert walk(pages) == [["A", "B"], ["C", "D"], ["E", "F"]]
    assert asked == ["asked"]
    assert (pages.get_for(None, "hidden"), pages.get_for_all("hidden")) == (None, None)
    assert pages.get_for(None, "f") is pages.get("f") is not None
    assert pages.depends_on_caller
    pages.remove("hidden")
    pages.remove("f")
    assert not pages.depends_on_caller
    pages.remove("a")
    assert (pages.get("a"), pages.get_for_all("a")) == (None, None)
