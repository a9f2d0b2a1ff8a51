"""Requests that come in: ids, shapes, methods (RPC-03, RPC-04, RPC-06, PR-09)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.state.peers import accepted, cancel, client_of, initialize, meta_of, modern, refused, server_of

from trio_mcp.jsonrpc.codec import decode
from trio_mcp.jsonrpc.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from trio_mcp.jsonrpc.messages import Notification, Request, Response
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN, LEGACY_REVISIONS, REVISIONS, Revision
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import Ignored, NotificationReceived, Refused, Unread

IDS = [0, -1, "1", "", 2**53 + 1, 10**25, "x" * 4096, "🦑"]
every_era = pytest.mark.parametrize("revision", [LATEST_LEGACY, LATEST_MODERN], ids=str)


def call(revision: Revision, request_id: Any, method: str = "tools/list", **params: Any) -> Request:
    meta = {} if revision.handshake else {"_meta": meta_of()}
    return Request(request_id, method, {**meta, **params})


@every_era
@pytest.mark.parametrize("request_id", IDS)
def test_received_request_is_registered_as_in_flight_with_its_id(revision: Revision, request_id: int | str) -> None:
    server = server_of(revision)
    request = accepted(server.receive(call(revision, request_id)))
    assert (type(request.id), request.id) == (type(request_id), request_id)
    assert server.inbound == (request,)


@every_era
def test_integer_id_and_equal_string_id_are_different_requests(revision: Revision) -> None:
    server = server_of(revision)
    requests = [accepted(server.receive(call(revision, request_id))) for request_id in (1, "1", 0, "")]
    assert server.inbound == tuple(requests)


@every_era
def test_request_that_reuses_an_id_in_flight_is_rejected_without_affecting_the_first_request(
    revision: Revision,
) -> None:
    server = server_of(revision)
    first = accepted(server.receive(call(revision, 7)))
    reply = refused(server.receive(call(revision, 7, "prompts/list")))
    assert (reply.code, reply.id) == (INVALID_REQUEST, 7)
    assert server.inbound == (first,)
    assert server.finish(first)


@every_era
def test_request_id_can_be_reused_after_the_response(revision: Revision) -> None:
    server = server_of(revision)
    server.finish(accepted(server.receive(call(revision, 7))))
    assert accepted(server.receive(call(revision, 7)))


@every_era
def test_request_id_can_be_reused_after_a_cancellation(revision: Revision) -> None:
    server = server_of(revision)
    accepted(server.receive(call(revision, 7)))
    server.receive(cancel(7))
    assert accepted(server.receive(call(revision, 7)))


@pytest.mark.parametrize("request_id", [None, True, 1.5, [], {}], ids=repr)
def test_request_with_an_invalid_id_is_rejected_and_not_in_flight(request_id: Any) -> None:
    server = server_of(LATEST_LEGACY)
    text = {None: "null", True: "true"}.get(request_id if request_id in (None, True) else 0, repr(request_id))
    event = server.receive(decode(f'{{"jsonrpc":"2.0","id":{text},"method":"tools/list"}}'.encode()))
    assert refused(event).code == INVALID_REQUEST
    assert server.inbound == ()


@pytest.mark.parametrize("params", [[], [1], "x", 3, False, True])
def test_request_params_that_are_not_an_object_get_error_invalid_params(params: Any) -> None:
    reply = refused(server_of(LATEST_LEGACY).receive(Request(7, "tools/list", params)))
    assert (reply.code, reply.id) == (INVALID_PARAMS, 7)


@pytest.mark.parametrize("meta", [[], "x", 3, False])
def test_request_meta_that_is_not_an_object_gets_error_invalid_params(meta: Any) -> None:
    reply = refused(server_of(LATEST_LEGACY).receive(Request(7, "tools/list", {"_meta": meta})))
    assert (reply.code, reply.id) == (INVALID_PARAMS, 7)


def test_absent_request_params_and_meta_are_read_as_new_empty_dicts() -> None:
    server = server_of(LATEST_LEGACY)
    first = accepted(server.receive(Request(1, "tools/list")))
    second = accepted(server.receive(Request(2, "tools/list", {"_meta": None})))
    first.params["scribble"] = first.meta["scribble"] = True
    assert second.meta == {}
    assert accepted(server.receive(Request(3, "tools/list"))).params == {}
    assert accepted(server.receive(Request(4, "tools/list"))).meta == {}


def test_request_params_and_meta_are_kept_unchanged() -> None:
    params = {"name": "x", "more": [1], "_meta": {"progressToken": "p", "com.example/trace": {"a": None}}}
    request = accepted(server_of(LATEST_LEGACY).receive(Request(1, "tools/call", params, size=99)))
    assert request.params == params
    assert request.meta == params["_meta"]
    assert request.size == 99


@every_era
@pytest.mark.parametrize("token", [0, -1, 7, "", "7", 9007199254740993])
def test_progress_token_keeps_its_json_type(revision: Revision, token: int | str) -> None:
    message = call(revision, 1, _meta={**({} if revision.handshake else meta_of()), "progressToken": token})
    found = accepted(server_of(revision).receive(message)).progress_token
    assert (type(found), found) == (type(token), token)


@every_era
@pytest.mark.parametrize("token", [True, 1.5, None, [], {}])
def test_request_with_an_invalid_progress_token_has_no_progress_token(revision: Revision, token: Any) -> None:
    message = call(revision, 1, _meta={**({} if revision.handshake else meta_of()), "progressToken": token})
    assert accepted(server_of(revision).receive(message)).progress_token is None


# Methods


@every_era
@pytest.mark.parametrize("method", ["tools/explode", "", "TOOLS/LIST", "rpc.discover"])
def test_request_with_an_unknown_method_gets_error_method_not_found(revision: Revision, method: str) -> None:
    reply = refused(server_of(revision).receive(call(revision, 7, method)))
    assert (reply.code, reply.id) == (METHOD_NOT_FOUND, 7)
    assert reply.data == {"method": method}


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=str)
def test_server_serves_only_methods_that_clients_can_send_in_the_revision(revision: Revision) -> None:
    for name in ("tools/list", "ping", "server/discover", "tasks/get", "logging/setLevel", "roots/list"):
        server = server_of(revision)
        row = revision._methods.get(name)
        event = server.receive(call(revision, 7, name))
        if row is not None and row.sent_by("client"):
            assert accepted(event).method is row
        else:
            assert refused(event).code == METHOD_NOT_FOUND


@pytest.mark.parametrize("revision", LEGACY_REVISIONS, ids=str)
def test_client_serves_only_methods_that_servers_can_send_in_the_revision(revision: Revision) -> None:
    for name in ("ping", "roots/list", "sampling/createMessage", "elicitation/create", "tools/list", "x"):
        client = client_of(revision)
        row = revision._methods.get(name)
        event = client.receive(Request(7, name))
        if row is not None and row.sent_by("server"):
            assert accepted(event).method is row
        else:
            assert refused(event).code == METHOD_NOT_FOUND


@every_era
def test_request_with_the_method_of_a_notification_gets_error_method_not_found(revision: Revision) -> None:
    server = server_of(revision)
    running = accepted(server.receive(call(revision, 7)))
    reply = refused(server.receive(call(revision, 8, "notifications/cancelled", requestId=7)))
    assert reply.code == METHOD_NOT_FOUND
    assert server.inbound == (running,)


def test_name_of_an_unknown_method_is_truncated_in_the_error_data() -> None:
    reply = refused(server_of(LATEST_LEGACY).receive(Request(7, "x" * 10_000)))
    assert len(reply.data["method"]) == 200


def test_client_answers_a_ping_before_the_revision_is_negotiated() -> None:
    assert accepted(ConnectionState("client").receive(Request(1, "ping"))).revision is LATEST_LEGACY


def test_request_to_a_modern_client_is_reported_and_not_answered() -> None:
    client = client_of(LATEST_MODERN)
    for message in (Request(1, "ping"), Request(2, "roots/list"), modern(3, "sampling/createMessage")):
        event = client.receive(message)
        assert isinstance(event, Ignored)
        assert event.noteworthy
    assert client.inbound == ()


@pytest.mark.parametrize(
    "message",
    [
        Request(1, "ping", [1]),
        Request(1, "ping", {"_meta": 1}),
        Request(1, "explode"),
        decode(b"{bad"),
        decode(b"{}"),
        decode(b'{"jsonrpc":"2.0","id":1,"result":{"requestState":"\\ud800"}}'),
        decode(b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]'),
    ],
    ids=str,
)
def test_modern_client_never_answers_a_received_message(message: Any) -> None:
    """2026-07-28 stdio, Sending Messages: the client MUST NOT write responses."""
    client = client_of(LATEST_MODERN)
    event = client.receive(message)
    assert isinstance(event, Unread) or (isinstance(event, Ignored) and event.noteworthy)
    assert client.inbound == ()


@every_era
@pytest.mark.parametrize(
    "line",
    [
        b"stray output",
        b"42",
        b"{}",
        b'{"jsonrpc":"2.0","id":5,"method":"roots/list",',
        b'{"jsonrpc":"1.0","id":5,"method":"roots/list"}',
        b'{"jsonrpc":"2.0","id":null,"method":"roots/list"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}',
        b"[]",
    ],
)
def test_client_does_not_answer_a_line_that_is_not_json_rpc(revision: Revision, line: bytes) -> None:
    for client in (client_of(revision), ConnectionState("client")):
        assert isinstance(client.receive(decode(line)), Unread)
        assert isinstance(server_of(revision).receive(decode(line)), Refused)


def test_legacy_client_answers_an_unknown_request_with_method_not_found() -> None:
    assert refused(client_of(LATEST_LEGACY).receive(Request(1, "explode"))).code == METHOD_NOT_FOUND


# Notifications


@every_era
@pytest.mark.parametrize(
    "message",
    [
        Notification("notifications/unheard_of"),
        Notification("tools/call", {"name": "x"}),
        Notification("notifications/message", {"level": "info", "data": 1}),
        Notification("notifications/initialized", [1]),
        Notification("notifications/initialized", "x"),
        Notification("", {}),
    ],
    ids=str,
)
def test_unknown_or_malformed_notification_is_ignored(revision: Revision, message: Notification) -> None:
    event = server_of(revision).receive(message)
    assert isinstance(event, Ignored)
    assert not event.noteworthy


def test_notification_event_contains_method_and_revision() -> None:
    event = client_of(LATEST_MODERN).receive(Notification("notifications/message", {"level": 3}))
    assert isinstance(event, NotificationReceived)
    assert event.method is LATEST_MODERN._methods["notifications/message"]
    assert (event.params, event.revision) == ({"level": 3}, LATEST_MODERN)


def test_notification_of_another_revision_is_ignored() -> None:
    message = Notification("notifications/elicitation/complete", {"elicitationId": "e"})
    assert isinstance(client_of(LATEST_LEGACY).receive(message), NotificationReceived)
    assert isinstance(client_of(REVISIONS["2025-06-18"]).receive(message), Ignored)
    assert isinstance(client_of(LATEST_MODERN).receive(message), Ignored)


# Lines that are no message (RPC-05)


@pytest.mark.parametrize("line", [b"{bad", b"{", b"42", b'"x"', b"[]", b"{}", b'{"jsonrpc":"1.0","id":3,"method":"x"}'])
def test_unreadable_line_is_rejected_once_and_the_next_line_is_served(line: bytes) -> None:
    server = server_of(LATEST_LEGACY)
    assert isinstance(server.receive(decode(line)), Refused)
    assert accepted(server.receive(Request(1, "ping")))


def test_invalid_response_is_reported_and_not_answered() -> None:
    event = server_of(LATEST_LEGACY).receive(decode(b'{"jsonrpc":"2.0","id":1,"result":1,"error":2}'))
    assert isinstance(event, Unread)


def test_incoming_and_outgoing_requests_can_have_the_same_id() -> None:
    server = server_of(LATEST_LEGACY, roots={})
    ours = server.open_request("roots/list", LATEST_LEGACY)
    theirs = accepted(server.receive(Request(ours.id, "ping")))
    assert server.finish(theirs)
    assert server.outbound == (ours,)
    assert not isinstance(server.receive(Response(ours.id, {"roots": []})), Ignored)


def test_initialize_request_is_registered_as_in_flight_with_its_id() -> None:
    server = ConnectionState("server")
    request = accepted(server.receive(initialize("2025-06-18", 7)))
    assert refused(server.receive(Request(7, "ping"))).code == INVALID_REQUEST
    assert server.inbound == (request,)
