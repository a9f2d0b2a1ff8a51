"""Requests that go out: ids, what may be sent, replies, progress and giving up (S2C-04, CAN-13, PRG-04, CH-13)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.state.peers import accepted, client_of, server_of

from trio_mcp.jsonrpc.codec import decode
from trio_mcp.jsonrpc.errors import METHOD_NOT_FOUND, MCPError
from trio_mcp.jsonrpc.messages import ErrorResponse, Notification, Request, Response, Unreadable
from trio_mcp.protocol.errors import MethodUnavailable
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN, REVISIONS, Revision
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import (
    AnswerLost,
    ErrorReceived,
    Ignored,
    ProgressReceived,
    ReplyUnreadable,
    RequestFailed,
    ResultReceived,
    Unread,
)
from trio_mcp.state.requests import OutboundRequest

# Opening


def test_each_outgoing_request_has_a_different_id() -> None:
    client = client_of(LATEST_LEGACY)
    calls = [client.open_request("ping", LATEST_LEGACY) for _ in range(50)]
    assert len({call.id for call in calls}) == 50
    assert client.outbound == tuple(calls)


def test_id_of_an_outgoing_request_is_not_reused() -> None:
    client = client_of(LATEST_LEGACY)
    first = client.open_request("ping", LATEST_LEGACY)
    client.receive(Response(first.id, {}))
    assert client.open_request("ping", LATEST_LEGACY).id != first.id


def test_id_of_an_outgoing_request_differs_from_incoming_ids_in_flight() -> None:
    server = server_of(LATEST_LEGACY)
    for request_id in (1, 2, 4, "3"):
        accepted(server.receive(Request(request_id, "ping")))
    calls = [server.open_request("ping", LATEST_LEGACY) for _ in range(3)]
    assert not {call.id for call in calls} & {1, 2, 4}


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=str)
@pytest.mark.parametrize("role", ["client", "server"])
def test_server_and_client_can_send_only_requests_that_the_revision_allows(role: Any, revision: Revision) -> None:
    for row in (*revision._methods.values(), *REVISIONS["2025-11-25"]._methods.values()):
        state = ConnectionState(role)
        ours = revision._methods.get(row.name)
        if ours is not None and ours.is_request and ours.sent_by(role):
            assert state.open_request(row.name, revision).method is ours
        else:
            with pytest.raises(MethodUnavailable):
                state.open_request(row.name, revision)
            assert state.outbound == ()


def test_method_unavailable_error_names_the_method_and_the_revision() -> None:
    with pytest.raises(MethodUnavailable, match=r"ping.*2026-07-28") as caught:
        client_of(LATEST_MODERN).open_request("ping", LATEST_MODERN)
    assert caught.value.code == METHOD_NOT_FOUND


def test_legacy_and_modern_outgoing_requests_can_wait_for_responses_concurrently() -> None:
    client = client_of(LATEST_LEGACY)
    old = client.open_request("ping", LATEST_LEGACY)
    new = client.open_request("server/discover", LATEST_MODERN)
    assert (old.revision, new.revision) == (LATEST_LEGACY, LATEST_MODERN)


# Replies


@pytest.fixture
def client() -> ConnectionState:
    return client_of(LATEST_LEGACY)


@pytest.fixture
def call(client: ConnectionState) -> OutboundRequest:
    return client.open_request("tools/call", LATEST_LEGACY)


def test_response_with_a_result_ends_its_request(client: ConnectionState, call: OutboundRequest) -> None:
    assert client.receive(Response(call.id, {"content": []})) == ResultReceived(call, {"content": []})
    assert client.outbound == ()


def test_response_with_an_error_ends_its_request(client: ConnectionState, call: OutboundRequest) -> None:
    error = ErrorResponse(call.id, -1, "refused")
    assert client.receive(error) == ErrorReceived(call, error)
    assert client.outbound == ()


def test_responses_can_arrive_in_any_order(client: ConnectionState) -> None:
    calls = [client.open_request("ping", LATEST_LEGACY) for _ in range(3)]
    for one in reversed(calls):
        assert client.receive(Response(one.id, {})) == ResultReceived(one, {})


@pytest.mark.parametrize("reply_id", ["2", 2, -1, "", "x"])
def test_response_without_a_request_in_flight_is_ignored(
    client: ConnectionState, call: OutboundRequest, reply_id: Any
) -> None:
    assert call.id == 1
    assert isinstance(client.receive(Response(reply_id, {})), Ignored)
    assert isinstance(client.receive(ErrorResponse(reply_id, -1, "no")), Ignored)
    assert client.outbound == (call,)


@pytest.mark.parametrize("reply", [Response("1", {}), ErrorResponse("1", -1, "no")])
def test_response_with_the_id_as_another_json_type_ends_the_only_request_in_flight(
    client: ConnectionState, call: OutboundRequest, reply: Any
) -> None:
    event = client.receive(reply)
    assert isinstance(event, ReplyUnreadable)
    assert (event.request, client.outbound) == (call, ())


def test_response_with_the_id_as_another_json_type_ends_neither_of_two_requests(client: ConnectionState) -> None:
    calls = tuple(client.open_request("ping", LATEST_LEGACY) for _ in range(2))
    assert isinstance(client.receive(Response("1", {})), Ignored)
    assert client.outbound == calls


def test_server_ignores_a_response_whose_id_has_another_type() -> None:
    server = server_of(LATEST_LEGACY)
    question = server.open_request("ping", LATEST_LEGACY)
    for line in (b'{"jsonrpc":"2.0","id":"1","result":{}}', b'{"jsonrpc":"2.0","id":1}'):
        assert not isinstance(server.receive(decode(line)), ReplyUnreadable)
    assert server.outbound == (question,)


def test_second_response_to_a_request_is_ignored(client: ConnectionState, call: OutboundRequest) -> None:
    client.receive(Response(call.id, {}))
    assert isinstance(client.receive(Response(call.id, {})), Ignored)
    assert isinstance(client.receive(ErrorResponse(call.id, -1, "no")), Ignored)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"both"}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}',
        b'{"jsonrpc":"1.0","id":1,"result":{}}',
        b'{"id":1,"result":{}}',
    ],
)
def test_invalid_response_fails_the_request_with_its_id(
    client: ConnectionState, call: OutboundRequest, line: bytes
) -> None:
    event = client.receive(decode(line))
    assert isinstance(event, ReplyUnreadable)
    assert event.request is call
    assert client.outbound == ()


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}',
        b'{"jsonrpc":"2.0","id":true,"result":{}}',
        b'{"jsonrpc":"2.0","id":1.0,"result":{}}',
        b'{"result":{}}',
    ],
)
def test_invalid_response_without_the_id_of_a_request_fails_no_request(
    client: ConnectionState, call: OutboundRequest, line: bytes
) -> None:
    client.receive(decode(line))
    assert client.receive(Response(call.id, {})) == ResultReceived(call, {})


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"both"}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}',
        b'{"jsonrpc":"1.0","id":1,"result":{}}',
    ],
)
def test_response_with_invalid_error_or_version_fails_the_request_with_its_id(
    client: ConnectionState, call: OutboundRequest, line: bytes
) -> None:
    event = client.receive(decode(line))
    assert isinstance(event, ReplyUnreadable)
    assert (event.request, client.outbound) == (call, ())


@pytest.mark.parametrize(
    "line",
    [
        b'{"result":{"content":',
        b'{"jsonrpc":"2.0","id":1.0,"result":{"content":',
        b'{"error":{"code":1,"message":"\\udc00"},"jsonrpc":"2.0"}',
    ],
)
def test_unreadable_response_without_an_id_is_reported_for_all_requests_but_listen_streams(
    client: ConnectionState, call: OutboundRequest, line: bytes
) -> None:
    other = client.open_request("ping", LATEST_LEGACY)
    client.open_request("subscriptions/listen", LATEST_MODERN)
    event = client.receive(decode(line))
    assert isinstance(event, AnswerLost)
    assert event.requests == (call, other)
    assert len(client.outbound) == 3, "it is not decided here"


def test_error_response_without_an_id_is_reported(client: ConnectionState) -> None:
    event = client.receive(ErrorResponse(None, -32700, "Parse error"))
    assert isinstance(event, Ignored)
    assert event.noteworthy


# Progress


@pytest.mark.parametrize("params", [{"progress": 1}, {"progress": "broken"}, {}])
def test_progress_notification_is_delivered_to_the_request_with_its_token(
    client: ConnectionState, call: OutboundRequest, params: dict[str, Any]
) -> None:
    said = {"progressToken": call.id, **params}
    assert client.receive(Notification("notifications/progress", said)) == ProgressReceived(call, said)


@pytest.mark.parametrize(
    "params",
    [None, {}, [], {"progressToken": "1"}, {"progressToken": 1.0}, {"progressToken": True}, {"progressToken": 2},
     {"progressToken": None}, {"progressToken": []}, {"progressToken": {}}],
    ids=str,
)  # fmt: skip
def test_progress_without_a_request_in_flight_is_ignored(
    client: ConnectionState, call: OutboundRequest, params: Any
) -> None:
    assert call.id == 1
    event = client.receive(Notification("notifications/progress", params))
    assert isinstance(event, Ignored)
    assert not event.noteworthy
    assert client.receive(Response(1, {})) == ResultReceived(call, {})


def test_progress_of_a_finished_request_is_ignored(client: ConnectionState, call: OutboundRequest) -> None:
    client.receive(Response(call.id, {}))
    event = client.receive(Notification("notifications/progress", {"progressToken": call.id, "progress": 1}))
    assert isinstance(event, Ignored)


# Giving up


def test_client_that_abandons_a_request_must_send_one_cancelled_notification(
    client: ConnectionState, call: OutboundRequest
) -> None:
    assert client.abandon(call)
    assert not client.abandon(call)
    assert client.outbound == ()


def test_client_that_abandons_a_finished_request_must_not_send_a_cancelled_notification(
    client: ConnectionState, call: OutboundRequest
) -> None:
    client.receive(Response(call.id, {}))
    assert not client.abandon(call)


def test_client_that_abandons_initialize_must_not_send_a_cancelled_notification() -> None:
    client = ConnectionState("client")
    call = client.open_request("initialize", LATEST_LEGACY)
    assert not client.abandon(call)
    assert client.outbound == ()


@pytest.mark.parametrize("late", [Response(1, {}), ErrorResponse(1, -1, "no")], ids=["result", "error"])
def test_late_response_to_an_abandoned_request_is_ignored(
    client: ConnectionState, call: OutboundRequest, late: Response | ErrorResponse
) -> None:
    assert call.id == 1
    client.abandon(call)
    event = client.receive(late)
    assert isinstance(event, Ignored)
    assert not event.noteworthy


def test_lost_connection_fails_every_request_in_flight_once(client: ConnectionState) -> None:
    calls = [client.open_request("ping", LATEST_LEGACY) for _ in range(3)]
    client.receive(Response(calls[1].id, {}))
    assert client.abandon_all() == [calls[0], calls[2]]
    assert client.abandon_all() == []
    assert not client.abandon(calls[0])


# What cannot be read


def test_unreadable_response_fails_the_request_with_its_id_once() -> None:
    client = client_of(LATEST_LEGACY)
    first, second = (client.open_request("ping", LATEST_LEGACY) for _ in range(2))
    event = client.receive(Unreadable("not JSON", None, second.id, is_answer=True))
    assert event == ReplyUnreadable(second, "not JSON")
    assert client.outbound == (first,)
    assert isinstance(client.receive(Response(second.id, {})), Ignored)


@pytest.mark.parametrize("settles", [99, "1"])
def test_unreadable_response_without_a_request_in_flight_is_reported(settles: Any) -> None:
    client = client_of(LATEST_LEGACY)
    call = client.open_request("ping", LATEST_LEGACY)
    assert client.receive(Unreadable("not JSON", None, settles, is_answer=True)) == Unread("not JSON")
    assert client.outbound == (call,)


# Replies that will not come


def test_request_whose_response_is_lost_fails_once() -> None:
    client = client_of(LATEST_LEGACY)
    call, error = client.open_request("tools/call", LATEST_LEGACY), MCPError("gone")
    assert client.reply_lost(call.id, error) == RequestFailed(call, error)
    assert isinstance(client.reply_lost(call.id, error), Ignored)
    assert isinstance(client.receive(Response(call.id, {})), Ignored)


def test_lost_response_without_a_request_in_flight_is_ignored() -> None:
    client = client_of(LATEST_LEGACY)
    call = client.open_request("tools/call", LATEST_LEGACY)
    assert isinstance(client.reply_lost(str(call.id), MCPError("gone")), Ignored)
    assert client.outbound == (call,)
