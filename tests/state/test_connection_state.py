"""The rest of what a connection rules on: the log level, bounds of what it quotes, and what it does not answer.

The files beside this one have the rules by subject: opening, requests and cancels received, batches, streams.
"""

from __future__ import annotations

import pytest
from tests.state.peers import accepted, client_of, initialize, modern, refused, server_of

from trio_mcp.jsonrpc.codec import decode
from trio_mcp.jsonrpc.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from trio_mcp.jsonrpc.messages import ErrorResponse, Notification, Request, Response, Unreadable
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN, REVISIONS, Revision
from trio_mcp.protocol.types.notifications import log_level_rank
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import AnswerLost, Ignored, NotificationReceived, Refused, ReplyUnreadable, Unread
from trio_mcp.state.requests import Role

LONG = "x" * 1000


def reason_of(event: object) -> str:
    assert isinstance(event, Ignored), event
    return event.reason


def test_new_connection_state_has_no_revision_or_capabilities() -> None:
    server, client = ConnectionState("server"), ConnectionState("client")
    assert (server.role, server.peer, client.role, client.peer) == ("server", "client", "client", "server")
    assert (server.revision, server.initialized, server.client_info) == (None, False, None)
    assert not server.client_capabilities.supports("roots")
    assert (server.require_initialized, server.subscriptions) == (False, set())
    assert server.log_rank == log_level_rank("info")


@pytest.mark.parametrize("level", ["debug", "error"])
def test_setting_the_log_level_of_a_connection_also_stores_its_numeric_rank(level: str) -> None:
    server = server_of(LATEST_LEGACY)
    server.set_log_level(level)
    assert (server.log_level, server.log_rank) == (level, log_level_rank(level))


# What is quoted of a peer's message has a bound


def test_message_of_an_error_response_without_a_request_is_truncated() -> None:
    client = client_of(LATEST_LEGACY)
    assert reason_of(client.receive(ErrorResponse(9, 1, LONG))) == (
        f"an error for no request in flight: {'x' * 200!r}"
    )  # fmt: skip


def test_error_response_for_a_finished_request_is_ignored_and_not_reported() -> None:
    client = client_of(LATEST_LEGACY)
    for request_id, noteworthy in ((9, False), (None, True)):
        event = client.receive(ErrorResponse(request_id, 1, "no"))
        assert isinstance(event, Ignored)
        assert event.noteworthy is noteworthy


def test_duplicate_request_id_is_truncated_in_the_error_message() -> None:
    server = server_of(LATEST_LEGACY)
    server.receive(Request(LONG, "ping"))
    assert refused(server.receive(Request(LONG, "ping"))).message == (
        f"Invalid request: id '{'x' * 99} is already in flight"
    )  # fmt: skip


def test_long_method_name_is_truncated_in_all_errors_and_reports() -> None:
    told = "since MCP 2026-07-28, servers must not send requests: "
    assert reason_of(client_of(LATEST_MODERN).receive(Request(1, LONG))) == told + "x" * 200
    assert reason_of(client_of(LATEST_LEGACY).receive(modern(1, LONG))) == told + "x" * 200
    server = server_of(LATEST_LEGACY)
    assert reason_of(server.receive(Notification(LONG))) == "unknown notification " + "x" * 200
    assert reason_of(server.receive(Notification(LONG, [1]))) == "x" * 200 + " whose parameters are not an object"
    for early in (server, ConnectionState("server")):
        reply = refused(early.receive(Request(1, LONG)))
        assert (reply.code, reply.data) == (METHOD_NOT_FOUND, {"method": "x" * 200})


# What is answered, and what is not


def test_modern_request_to_a_legacy_client_is_reported_and_not_answered() -> None:
    for client in (client_of(LATEST_LEGACY), ConnectionState("client")):
        event = client.receive(modern(1, "sampling/createMessage"))
        assert isinstance(event, Ignored)
        assert event.noteworthy
        assert client.inbound == ()


def test_legacy_client_rejects_a_too_long_message_only_if_it_is_a_request() -> None:
    reply = ErrorResponse(7, INVALID_REQUEST, "too long")
    long = Unreadable("too long", reply, too_long=True)
    for client in (client_of(LATEST_LEGACY), ConnectionState("client")):
        assert client.receive(long) == Refused(reply)
        assert client.receive(Unreadable("bad", reply)) == Unread("bad")
        nameless = Unreadable("too long", ErrorResponse(None, INVALID_REQUEST, "too long"), too_long=True)
        assert client.receive(nameless) == Unread("too long")
    assert client_of(LATEST_MODERN).receive(long) == Unread("too long")
    assert server_of(LATEST_LEGACY).receive(Unreadable("bad", reply)) == Refused(reply)


def test_server_does_not_answer_an_unreadable_line_that_may_be_a_response() -> None:
    assert server_of(LATEST_LEGACY).receive(Unreadable("bad", None)) == Unread("bad")


def test_unreadable_response_without_an_id_is_reported_for_all_requests_in_flight() -> None:
    client = client_of(LATEST_MODERN)
    lost = Unreadable("bad", None, is_answer=True)
    assert client.receive(lost) == Unread("bad")
    client.open_request("subscriptions/listen", LATEST_MODERN)
    assert client.receive(lost) == Unread("bad"), "a stream is answered by its end"
    call = client.open_request("tools/list", LATEST_MODERN)
    assert client.receive(lost) == AnswerLost((call,), "bad")


def test_too_long_message_is_treated_as_a_lost_response_if_a_request_waits_for_a_response() -> None:
    refused = ErrorResponse(None, INVALID_REQUEST, "too long")
    unknown = Unreadable("too long", refused, too_long=True, may_be_answer=True)
    client, server = client_of(LATEST_LEGACY), server_of(LATEST_LEGACY)
    assert client.receive(unknown) == Unread("too long")
    assert server.receive(unknown) == Refused(refused)
    call, question = client.open_request("tools/list", LATEST_LEGACY), server.open_request("roots/list", LATEST_LEGACY)
    assert client.receive(unknown) == AnswerLost((call,), "too long")
    assert server.receive(unknown) == AnswerLost((question,), "too long")
    other = client.open_request("tools/list", LATEST_LEGACY)
    named = Unreadable("too long", refused, other.id, too_long=True, may_be_answer=True)
    assert client.receive(named) == ReplyUnreadable(other, "too long")
    assert client.receive(named) == Unread("too long")


def test_response_without_a_request_in_flight_is_ignored_with_a_reason() -> None:
    assert reason_of(client_of(LATEST_LEGACY).receive(Response(3, {}))) == "a result for no request in flight"


def test_null_params_of_a_request_are_treated_as_absent() -> None:
    server = server_of(LATEST_LEGACY)
    request = accepted(server.receive(Request(1, "ping", None)))
    assert (request.params, request.meta) == ({}, {})
    assert refused(server.receive(Request(2, "ping", 0))).code == INVALID_PARAMS


def test_request_received_by_a_client_before_the_handshake_has_the_latest_legacy_revision() -> None:
    assert accepted(ConnectionState("client").receive(Request(1, "roots/list"))).revision is LATEST_LEGACY


def test_initialize_request_event_contains_the_negotiated_revision() -> None:
    server = ConnectionState("server", require_initialized=True)
    request = accepted(server.receive(initialize("2025-03-26", 5)))
    assert request.revision.name == "2025-03-26"
    assert request.method.name == "initialize"


def test_line_that_is_not_a_json_rpc_message_is_rejected_with_its_id_or_null() -> None:
    server = server_of(LATEST_LEGACY)
    assert refused(server.receive(decode(b"{"))).id is None
    assert refused(server.receive(decode(b'{"jsonrpc":"1.0","id":3,"method":"x"}'))).id == 3


# Notifications


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=str)
@pytest.mark.parametrize("role", ["client", "server"])
def test_notification_received_twice_produces_equal_events(role: Role, revision: Revision) -> None:
    state = client_of(revision) if role == "client" else server_of(revision)
    state.revision = revision
    for name, row in revision._methods.items():
        for params in ({"a": 1}, {"_meta": {"a": 1}}, {}, None):
            events = [state.receive(Notification(name, params)) for _ in range(2)]
            assert events[0] == events[1]
            if not row.is_request and row.sent_by(state.peer) and name not in _ABOUT_REQUESTS:
                assert events[0] == NotificationReceived(row, params or {}, revision)
            else:
                assert isinstance(events[0], Ignored)
        assert isinstance(state.receive(Notification(name, [1])), Ignored)


_ABOUT_REQUESTS = ("notifications/cancelled", "notifications/progress")


def test_notification_that_the_negotiated_revision_lacks_is_ignored() -> None:
    client = ConnectionState("client")
    assert isinstance(client.receive(Notification("notifications/message", {})), NotificationReceived)
    complete = Notification("notifications/elicitation/complete", {"elicitationId": "1"})
    for revision, kind in ((LATEST_LEGACY, NotificationReceived), (LATEST_MODERN, Ignored)):
        client.revision = revision
        assert type(client.receive(complete)) is kind
