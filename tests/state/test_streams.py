"""Streams of ours: whose a notification is, and who may end one (2026-07-28 subscriptions, cancellation; MOD-01)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.state.peers import cancel, client_of, server_of

from trio_mcp.jsonrpc.messages import Notification, Response
from trio_mcp.protocol.meta import SUBSCRIPTION_ID
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import Ignored, NotificationReceived, ResultReceived, StreamCancelled, StreamReceived
from trio_mcp.state.requests import OutboundRequest

CHANGED = "notifications/tools/list_changed"


def listening() -> tuple[ConnectionState, OutboundRequest]:
    client = client_of(LATEST_MODERN)
    return client, client.open_request("subscriptions/listen", LATEST_MODERN)


def tagged(subscription_id: Any, method: str = CHANGED) -> Notification:
    return Notification(method, {"_meta": {SUBSCRIPTION_ID: subscription_id}})


@pytest.mark.parametrize("method", [CHANGED, "notifications/subscriptions/acknowledged"])
def test_notification_is_delivered_to_the_listen_stream_with_its_subscription_id(method: str) -> None:
    client, _ = listening()
    stream = client.open_request("subscriptions/listen", LATEST_MODERN)
    event = client.receive(tagged(stream.id, method))
    assert isinstance(event, StreamReceived)
    assert event.request is stream
    assert event.notification.method.name == method
    assert stream in client.outbound


@pytest.mark.parametrize("spelling", ["text", "bool", "float", "unknown", "null", "list"])
def test_notification_with_a_subscription_id_of_another_type_or_value_is_ignored(spelling: str) -> None:
    client, stream = listening()
    assert stream.id == 1
    other: dict[str, Any] = {"text": "1", "bool": True, "float": 1.0, "unknown": 2, "null": None, "list": [1]}
    assert isinstance(client.receive(tagged(other[spelling])), Ignored)


def test_notification_with_the_id_of_a_request_that_is_no_listen_stream_is_ignored() -> None:
    client = client_of(LATEST_MODERN)
    call = client.open_request("tools/list", LATEST_MODERN)
    assert isinstance(client.receive(tagged(call.id)), Ignored)


@pytest.mark.parametrize("params", [None, {}, {"_meta": None}, {"_meta": [1]}, {"_meta": {}}])
def test_notification_without_a_subscription_id_is_delivered_to_the_connection(params: Any) -> None:
    client, _ = listening()
    assert isinstance(client.receive(Notification(CHANGED, params)), NotificationReceived)


def test_notification_with_a_subscription_id_in_a_legacy_revision_goes_to_the_connection() -> None:
    client = client_of(LATEST_LEGACY)
    assert isinstance(client.receive(tagged(1)), NotificationReceived)


def test_response_with_a_result_ends_its_listen_stream() -> None:
    client, stream = listening()
    assert client.receive(Response(stream.id, {})) == ResultReceived(stream, {})
    assert isinstance(client.receive(tagged(stream.id)), Ignored)


def test_cancelled_notification_from_the_server_ends_the_listen_stream() -> None:
    client, stream = listening()
    assert client.receive(cancel(stream.id, "over")) == StreamCancelled(stream, "over")
    assert client.outbound == ()
    assert isinstance(client.receive(tagged(stream.id)), Ignored)
    assert isinstance(client.receive(Response(stream.id, {})), Ignored)
    assert isinstance(client.receive(cancel(stream.id)), Ignored)


def test_cancel_reason_of_a_listen_stream_that_is_not_a_string_is_ignored() -> None:
    client, stream = listening()
    assert client.receive(cancel(stream.id, 7)) == StreamCancelled(stream, None)


@pytest.mark.parametrize("request_id", ["1", True, 1.0, 2, None, [1]])
def test_cancelled_notification_with_another_id_does_not_end_the_listen_stream(request_id: Any) -> None:
    client, stream = listening()
    assert isinstance(client.receive(cancel(request_id)), Ignored)
    assert client.outbound == (stream,)


def test_modern_server_cannot_cancel_a_client_request_that_is_not_a_listen_stream() -> None:
    client = client_of(LATEST_MODERN)
    call = client.open_request("tools/list", LATEST_MODERN)
    assert isinstance(client.receive(cancel(call.id)), Ignored)
    assert client.outbound == (call,)


def test_client_that_abandons_an_open_listen_stream_must_send_a_cancelled_notification() -> None:
    client, left = listening()
    ended = client.open_request("subscriptions/listen", LATEST_MODERN)
    client.receive(cancel(ended.id))
    assert client.abandon(left)
    assert not client.abandon(ended)


def test_client_cannot_cancel_a_request_that_the_server_sent() -> None:
    server = server_of(LATEST_LEGACY)
    question = server.open_request("roots/list", LATEST_LEGACY)
    assert isinstance(server.receive(cancel(question.id)), Ignored)
    assert server.outbound == (question,)
