"""The tables of requests in flight, without any message: who holds an id, and until when."""

from __future__ import annotations

import pytest
from tests.state.peers import accepted, cancel, client_of, server_of

from trio_mcp.jsonrpc.messages import Request
from trio_mcp.protocol.errors import MethodUnavailable
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import CancelReceived, Ignored
from trio_mcp.state.requests import InboundRequest


def serving(*request_ids: int | str) -> tuple[ConnectionState, tuple[InboundRequest, ...]]:
    server = server_of(LATEST_LEGACY)
    return server, tuple(accepted(server.receive(Request(each, "tools/call", {"name": "x"}))) for each in request_ids)


# Requests of ours


def test_outgoing_requests_are_numbered_from_1_and_listed_oldest_first() -> None:
    tables = ConnectionState("client")
    calls = [tables.open_request("ping", LATEST_LEGACY) for _ in range(3)]
    assert [call.id for call in calls] == [1, 2, 3]
    assert tables.outbound == tuple(calls)
    assert (calls[0].method.name, calls[0].revision) == ("ping", LATEST_LEGACY)


def test_id_of_a_finished_outgoing_request_is_not_reused() -> None:
    tables = ConnectionState("client")
    tables.abandon(tables.open_request("ping", LATEST_LEGACY))
    assert tables.open_request("ping", LATEST_LEGACY).id == 2


def test_outgoing_request_ids_skip_incoming_ids_in_flight() -> None:
    server, _ = serving(1, 2, 4)
    assert [server.open_request("roots/list", LATEST_LEGACY).id for _ in range(3)] == [3, 5, 6]


def test_request_that_the_revision_lacks_raises_and_is_not_registered() -> None:
    tables = ConnectionState("server")
    with pytest.raises(MethodUnavailable):
        tables.open_request("roots/list", LATEST_MODERN)
    assert tables.outbound == ()
    assert tables.open_request("roots/list", LATEST_LEGACY).id == 1


def test_abandoning_a_request_removes_only_that_request_and_returns_true_once() -> None:
    tables = ConnectionState("client")
    one, two = (tables.open_request("ping", LATEST_LEGACY) for _ in range(2))
    assert [tables.abandon(one), tables.abandon(one)] == [True, False]
    assert tables.outbound == (two,)


def test_abandoning_a_request_does_not_affect_a_request_of_another_connection_with_an_equal_id() -> None:
    tables, other = ConnectionState("client"), ConnectionState("client")
    call = tables.open_request("ping", LATEST_LEGACY)
    assert not tables.abandon(other.open_request("ping", LATEST_LEGACY))
    assert tables.outbound == (call,)


def test_abandoning_an_initialize_request_returns_false() -> None:
    tables = ConnectionState("client")
    assert not tables.abandon(tables.open_request("initialize", LATEST_LEGACY))
    assert tables.outbound == ()


def test_abandoning_all_requests_returns_each_outgoing_request_once_oldest_first() -> None:
    tables = ConnectionState("client")
    calls = [tables.open_request("ping", LATEST_LEGACY) for _ in range(3)]
    assert tables.abandon_all() == calls
    assert (tables.abandon_all(), tables.outbound) == ([], ())


# Requests of the peer


def test_finished_request_is_removed_from_the_requests_in_flight_only_once() -> None:
    server, (one, two) = serving("one", "two")
    assert server.inbound == (one, two)
    assert [server.finish(one), server.finish(one)] == [True, False]
    assert server.inbound == (two,)


def test_request_that_awaits_input_is_not_in_flight_but_can_be_cancelled() -> None:
    server, (request,) = serving(5)
    server.park(request)
    assert server.inbound == ()
    assert server.receive(cancel(5, "enough")) == CancelReceived(request, "enough")
    assert isinstance(server.receive(cancel(5)), Ignored), "it was cancelled"


def test_request_that_finishes_while_awaiting_input_is_not_answered_and_cannot_be_cancelled() -> None:
    server, (request,) = serving(5)
    server.park(request)
    assert not server.finish(request)
    assert isinstance(server.receive(cancel(5)), Ignored)


def test_cancelled_request_cannot_await_input() -> None:
    server, (request,) = serving(5)
    server.receive(cancel(5))
    server.park(request)
    assert isinstance(server.receive(cancel(5)), Ignored)


def test_id_of_a_request_that_awaits_input_refers_to_a_newer_request_that_reuses_the_id() -> None:
    server, (parked,) = serving(5)
    server.park(parked)
    newer = accepted(server.receive(Request(5, "tools/list")))
    assert not server.finish(parked)
    assert server.inbound == (newer,)
    assert server.receive(cancel(5)) == CancelReceived(newer, None)
    assert isinstance(server.receive(cancel(5)), Ignored), "the parked one lost its id for good"


def test_request_finished_while_awaiting_input_does_not_affect_a_newer_request_with_the_same_id() -> None:
    server, (old,) = serving(5)
    server.park(old)
    newer = accepted(server.receive(Request(5, "tools/list")))
    server.park(newer)
    assert not server.finish(old)
    assert server.receive(cancel(5)) == CancelReceived(newer, None)


def test_finished_incoming_request_does_not_affect_an_outgoing_request_with_the_same_id() -> None:
    client = client_of(LATEST_LEGACY)
    ours = client.open_request("ping", LATEST_LEGACY)
    theirs = accepted(client.receive(Request(ours.id, "ping")))
    assert client.finish(theirs)
    assert client.outbound == (ours,)
