"""Message classes: equality, copying, pickling."""

import pickle

import attrs
import pytest

from trio_mcp.jsonrpc.messages import Notification, Request, Response


def test_json_rpc_messages_are_equal_by_value() -> None:
    assert Request(1, "ping") == Request(1, "ping")
    assert Request(1, "ping") != Request(2, "ping")
    assert len({Notification("a"), Notification("a"), Notification("b")}) == 2


def test_setting_an_unknown_attribute_of_a_json_rpc_message_raises_attribute_error() -> None:
    with pytest.raises(AttributeError):
        Response(1, None).note = "x"  # type: ignore[attr-defined]


def test_json_rpc_messages_can_be_copied_with_a_change() -> None:
    assert attrs.evolve(Request(1, "ping"), id=2) == Request(2, "ping")


def test_requests_that_differ_only_in_size_are_equal_and_have_the_same_hash() -> None:
    assert Request(1, "ping", size=10) == Request(1, "ping", size=20)
    assert hash(Request(1, "ping", size=10)) == hash(Request(1, "ping", size=20))


def test_json_rpc_messages_of_different_classes_are_never_equal() -> None:
    assert Notification("a", None) != Response("a", None)


def test_repr_of_a_json_rpc_message_omits_absent_fields() -> None:
    assert repr(Request(1, "ping", {"a": 1})) == "Request(id=1, method='ping', params={'a': 1}, size=0)"
    assert repr(Notification("a")) == "Notification(method='a')"


def test_json_rpc_messages_can_be_pickled() -> None:
    request = Request(1, "ping", {"a": 1}, 30)
    again = pickle.loads(pickle.dumps(request))
    assert (again, again.size) == (request, 30)
