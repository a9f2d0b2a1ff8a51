"""Batches: accepted until 2025-03-26, refused whole afterwards (SV-02)."""

from __future__ import annotations

import pytest
from tests.state.peers import client_of, initialize, modern, refused, server_of

from trio_mcp.jsonrpc.codec import decode
from trio_mcp.jsonrpc.errors import INVALID_REQUEST
from trio_mcp.jsonrpc.messages import Batch, Notification, Request, Response, Unreadable
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN, REVISIONS, Revision
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import (
    BatchReceived,
    CancelReceived,
    Event,
    Ignored,
    Refused,
    ReplyUnreadable,
    RequestReceived,
    ResultReceived,
    Unread,
)

TWO = Batch((Request(1, "ping"), Request(2, "tools/list")))

with_batches = pytest.mark.parametrize("revision", [row for row in REVISIONS.values() if row.batches], ids=str)


def events_of(event: Event) -> tuple[Event, ...]:
    assert isinstance(event, BatchReceived)
    return event.events


@with_batches
def test_requests_of_a_batch_are_received_in_order(revision: Revision) -> None:
    server = server_of(revision)
    events = events_of(server.receive(TWO))
    assert [event.request.id for event in events if isinstance(event, RequestReceived)] == [1, 2]
    assert len(server.inbound) == 2


@pytest.mark.parametrize("revision", [row for row in REVISIONS.values() if not row.batches], ids=str)
def test_batch_in_a_revision_without_batches_gets_error_invalid_request(revision: Revision) -> None:
    server = server_of(revision)
    reply = refused(server.receive(TWO))
    assert (reply.code, reply.id) == (INVALID_REQUEST, None)
    assert server.inbound == ()


def test_batch_before_the_handshake_gets_error_invalid_request() -> None:
    reply = refused(ConnectionState("server").receive(TWO))
    assert (reply.code, reply.id) == (INVALID_REQUEST, None)
    assert isinstance(ConnectionState("client").receive(TWO), Unread)


@with_batches
def test_invalid_message_in_a_batch_is_rejected_without_affecting_the_other_messages(revision: Revision) -> None:
    bad = decode(b"{}")
    assert isinstance(bad, Unreadable)
    events = events_of(server_of(revision).receive(Batch((bad, Request(2, "ping"), Request(3, "explode")))))
    assert [type(event) for event in events] == [Refused, RequestReceived, Refused]


@with_batches
def test_second_request_of_a_batch_that_repeats_an_id_is_rejected(revision: Revision) -> None:
    events = events_of(server_of(revision).receive(Batch((Request(1, "ping"), Request(1, "ping")))))
    assert [type(event) for event in events] == [RequestReceived, Refused]


@with_batches
def test_request_can_be_cancelled_in_the_batch_that_contains_it(revision: Revision) -> None:
    server = server_of(revision)
    cancelled = Notification("notifications/cancelled", {"requestId": 1})
    events = events_of(server.receive(Batch((Request(1, "ping"), cancelled, cancelled))))
    assert [type(event) for event in events] == [RequestReceived, CancelReceived, Ignored]
    assert server.inbound == ()


@with_batches
def test_initialize_request_in_a_batch_gets_error_invalid_request(revision: Revision) -> None:
    server = server_of(revision)
    (event,) = events_of(server.receive(Batch((initialize("2025-11-25", 9),))))
    reply = refused(event)
    assert (reply.code, reply.id) == (INVALID_REQUEST, 9)
    assert server.revision is revision


@with_batches
def test_modern_request_in_a_batch_is_rejected_with_its_id(revision: Revision) -> None:
    server = server_of(revision)
    first, second = events_of(server.receive(Batch((modern(8), Request(9, "ping")))))
    reply = refused(first)
    assert (reply.code, reply.id) == (INVALID_REQUEST, 8)
    assert isinstance(second, RequestReceived)
    assert [request.id for request in server.inbound] == [9]


@with_batches
def test_client_accepts_a_batch_of_responses(revision: Revision) -> None:
    client = client_of(revision)
    first, second = (client.open_request("ping", revision) for _ in range(2))
    events = events_of(client.receive(Batch((Response(second.id, {}), Response(first.id, {}), Response(99, {})))))
    assert events[:2] == (ResultReceived(second, {}), ResultReceived(first, {}))
    assert isinstance(events[2], Ignored)


@pytest.mark.parametrize("revision", [LATEST_LEGACY, LATEST_MODERN], ids=str)
def test_batch_of_responses_fails_its_requests_in_a_revision_without_batches(revision: Revision) -> None:
    client = client_of(revision)
    call = client.open_request("tools/list", revision)
    [event] = events_of(client.receive(Batch((Response(call.id, {}),))))
    assert isinstance(event, ReplyUnreadable)
    assert event.request is call
    assert client.outbound == ()
