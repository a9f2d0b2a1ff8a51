"""Values: one per message, compared by what they hold."""

import pickle

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


def test_size_on_the_wire_is_no_part_of_what_a_request_is() -> None:
    assert Request(1, "ping", size=10) == Request(1, "ping", size=20)
    assert hash(Request(1, "ping", size=10)) == hash(Request(1, "ping", size=20))


def test_values_of_different_classes_are_never_equal() -> None:
    assert Notification("a", None) != Response("a", None)


def test_values_are_shown_without_what_is_absent() -> None:
    assert repr(Request(1, "ping", {"a": 1})) == "Request(id=1, method='ping', params={'a': 1}, size=0)"
    assert repr(Notification("a")) == "Notification(method='a')"


def test_values_survive_pickling() -> None:
    request = Request(1, "ping", {"a": 1}, 30)
    again = pickle.loads(pickle.dumps(request))
    assert (again, again.size) == (request, 30)
