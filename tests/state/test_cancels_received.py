"""Cancels that come in: which one they meet, and which they do not (CAN-05, CA-10, CA-12)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.state.peers import accepted, cancel, client_of, modern, server_of

from trio_mcp.jsonrpc.messages import Notification, Request
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import CancelReceived, Ignored


def serving(*request_ids: int | str) -> ConnectionState:
    server = server_of(LATEST_LEGACY)
    for request_id in request_ids:
        accepted(server.receive(Request(request_id, "tools/call", {"name": "x"})))
    return server


@pytest.mark.parametrize("request_id", [0, -1, "", "1", 10**25, "🦑"])
def test_cancelled_notification_removes_its_request_from_the_requests_in_flight(request_id: int | str) -> None:
    server = serving(request_id)
    (request,) = server.inbound
    event = server.receive(cancel(request_id, "enough"))
    assert event == CancelReceived(request, "enough")
    assert server.inbound == ()


def test_cancelled_request_is_not_answered() -> None:
    server = serving(5)
    (request,) = server.inbound
    server.receive(cancel(5))
    assert not server.finish(request)


def test_cancelled_notification_matches_a_request_id_by_value_and_json_type() -> None:
    server = serving(1, "1")
    number, text = server.inbound
    assert server.receive(cancel("1")) == CancelReceived(text, None)
    assert server.inbound == (number,)


@pytest.mark.parametrize("reason", [None, 3, [], {}, True])
def test_cancel_reason_that_is_not_a_string_is_ignored(reason: Any) -> None:
    event = serving(5).receive(cancel(5, reason))
    assert isinstance(event, CancelReceived)
    assert event.reason is None


def test_cancelled_notification_with_an_empty_string_as_reason_keeps_that_reason() -> None:
    event = serving(5).receive(cancel(5, ""))
    assert isinstance(event, CancelReceived)
    assert event.reason == ""


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        [],
        "5",
        {"requestId": None},
        {"requestId": {}},
        {"requestId": []},
        {"requestId": True},
        {"requestId": 5.0},
        {"requestId": "5"},
        {"requestId": 6},
        {"requestid": 5},
        {"reason": "enough"},
    ],
    ids=str,
)
def test_cancelled_notification_without_a_request_in_flight_is_ignored(params: Any) -> None:
    server = serving(5, 1)
    event = server.receive(Notification("notifications/cancelled", params))
    assert isinstance(event, Ignored)
    assert not event.noteworthy
    assert len(server.inbound) == 2


def test_cancelled_notification_with_unknown_fields_is_accepted() -> None:
    message = Notification("notifications/cancelled", {"requestId": 5, "_meta": {}, "urgent": 1})
    assert isinstance(serving(5).receive(message), CancelReceived)


def test_cancelled_notification_for_a_finished_request_is_ignored() -> None:
    server = serving(5)
    server.finish(server.inbound[0])
    assert isinstance(server.receive(cancel(5)), Ignored)


def test_second_cancelled_notification_for_a_request_is_ignored() -> None:
    server = serving(5)
    server.receive(cancel(5))
    assert isinstance(server.receive(cancel(5)), Ignored)


def test_cancelled_notification_with_an_id_used_by_two_requests_cancels_the_newer_request() -> None:
    server = serving(5)
    (old,) = server.inbound
    server.receive(cancel(5))
    new = accepted(server.receive(Request(5, "tools/list")))
    assert server.receive(cancel(5)) == CancelReceived(new, None)
    assert not server.finish(old)


def test_request_that_ends_does_not_affect_a_newer_request_with_the_same_id() -> None:
    server = serving(5)
    (old,) = server.inbound
    server.receive(cancel(5))
    new = accepted(server.receive(Request(5, "tools/list")))
    assert not server.finish(old)
    assert server.inbound == (new,)
    assert server.finish(new)


def test_request_that_is_finished_twice_is_answered_only_once() -> None:
    server = serving(5)
    (request,) = server.inbound
    assert server.finish(request)
    assert not server.finish(request)


def test_cancelled_notification_from_the_peer_does_not_cancel_an_outgoing_request() -> None:
    client = client_of(LATEST_LEGACY)
    ours = client.open_request("tools/list", LATEST_LEGACY)
    assert isinstance(client.receive(cancel(ours.id)), Ignored)
    assert client.outbound == (ours,)


def test_cancelled_notification_does_not_affect_the_same_id_on_another_connection() -> None:
    here, there = serving(5), serving(5)
    there.receive(cancel(5))
    assert len(here.inbound) == 1


def test_cancelled_notification_cancels_a_modern_request() -> None:
    server = ConnectionState("server")
    request = accepted(server.receive(modern(5)))
    assert request.revision is LATEST_MODERN
    assert server.receive(cancel(5)) == CancelReceived(request, None)


def test_server_can_cancel_its_request_to_a_legacy_client() -> None:
    client = client_of(LATEST_LEGACY)
    request = accepted(client.receive(Request("s1", "roots/list")))
    assert client.receive(cancel("s1")) == CancelReceived(request, None)
