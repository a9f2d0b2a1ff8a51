"""Values: one per message, compared by what they hold."""

import attrs
import pytest

from trio_mcp.jsonrpc.messages import Notification, Request, Response


def test_values_are_equal_by_what_they_hold() -> None:
    assert Request(1, "ping") == Request(1, "ping")
    assert Request(1, "ping") != Request(2, "ping")
    assert len({Notification("a"), Notification("a"), Notification("b")}) == 2


def test_values_have_no_room_for_anything_else() -> None:
    with pytest.raises(AttributeError):
        Response(1, None).note = "x"  # type: ignore[attr-defined]


def test_values_are_copied_with_a_change() -> None:
    assert attrs.evolve(Request(1, "ping"), id=2) == Request(2, "ping")
