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


def test_requests_of_ours_are_numbered_from_1_and_held_oldest_first() -> None:
    tables = ConnectionState("client")
    calls = [tables.open_request("ping", LATEST_LEGACY) for _ in range(3)]
    assert [call.id for call in calls] == [1, 2, 3]
    assert tables.outbound == tuple(calls)
    assert (calls[0].method.name, calls[0].revision) == ("ping", LATEST_LEGACY)


def test_an_id_of_ours_is_not_used_again_when_it_is_free() -> None:
    tables = ConnectionState("client")
    tables.abandon(tables.open_request("ping", LATEST_LEGACY))
    assert tables.open_request("ping", LATEST_LEGACY).id == 2


def test_an_id_of_ours_differs_from_those_of_the_peer_in_flight() -> None:
    server, _ = serving(1, 2, 4)
    assert [server.open_request("roots/list", LATEST_LEGACY).id for _ in range(3)] == [3, 5, 6]


def test_a_request_that_the_revision_does_not_have_is_not_opened() -> None:
    tables = ConnectionState("server")
    with pytest.raises(MethodUnavailable):
        tables.open_request("roots/list", LATEST_MODERN)
    assert tables.outbound == ()
    assert tables.open_request("roots/list", LATEST_LEGACY).id == 1


def test_giving_up_on_a_request_takes_that_one_alone_and_tells_once_that_a_cancel_is_to_be_sent() -> None:
    tables = ConnectionState("client")
    one, two = (tables.open_request("ping", LATEST_LEGACY) for _ in range(2))
    assert [tables.abandon(one), tables.abandon(one)] == [True, False]
    assert tables.outbound == (two,)


def test_giving_up_on_a_request_of_another_connection_under_the_same_id_does_nothing() -> None:
    tables, other = ConnectionState("client"), ConnectionState("client")
    call = tables.open_request("ping", LATEST_LEGACY)
    assert not tables.abandon(other.open_request("ping", LATEST_LEGACY))
    assert tables.outbound == (call,)


def test_initialize_is_given_up_without_a_cancel() -> None:
    tables = ConnectionState("client")
    assert not tables.abandon(tables.open_request("initialize", LATEST_LEGACY))
    assert tables.outbound == ()


def test_all_requests_of_ours_are_given_up_once_oldest_first() -> None:
    tables = ConnectionState("client")
    calls = [tables.open_request("ping", LATEST_LEGACY) for _ in range(3)]
    assert tables.abandon_all() == calls
    assert (tables.abandon_all(), tables.outbound) == ([], ())


# Requests of the peer


def test_a_request_of_the_peer_is_finished_once_and_others_stay_in_flight() -> None:
    server, (one, two) = serving("one", "two")
    assert server.inbound == (one, two)
    assert [server.finish(one), server.finish(one)] == [True, False]
    assert server.inbound == (two,)


def test_a_parked_request_is_in_flight_no_more_and_its_cancel_meets_it() -> None:
    server, (request,) = serving(5)
    server.park(request)
    assert server.inbound == ()
    assert server.receive(cancel(5, "enough")) == CancelReceived(request, "enough")
    assert isinstance(server.receive(cancel(5)), Ignored), "it was cancelled"


def test_a_parked_request_that_is_finished_is_not_answered_and_no_cancel_meets_it() -> None:
    server, (request,) = serving(5)
    server.park(request)
    assert not server.finish(request)
    assert isinstance(server.receive(cancel(5)), Ignored)


def test_a_request_that_was_cancelled_is_not_parked() -> None:
    server, (request,) = serving(5)
    server.receive(cancel(5))
    server.park(request)
    assert isinstance(server.receive(cancel(5)), Ignored)


def test_the_id_of_a_parked_request_names_the_newer_request_that_takes_it_and_only_that() -> None:
    server, (parked,) = serving(5)
    server.park(parked)
    newer = accepted(server.receive(Request(5, "tools/list")))
    assert not server.finish(parked)
    assert server.inbound == (newer,)
    assert server.receive(cancel(5)) == CancelReceived(newer, None)
    assert isinstance(server.receive(cancel(5)), Ignored), "the parked one lost its id for good"


def test_a_parked_request_does_not_end_another_that_is_parked_under_its_id() -> None:
    server, (old,) = serving(5)
    server.park(old)
    newer = accepted(server.receive(Request(5, "tools/list")))
    server.park(newer)
    assert not server.finish(old)
    assert server.receive(cancel(5)) == CancelReceived(newer, None)


def test_an_id_of_the_peer_does_not_name_a_request_of_ours() -> None:
    client = client_of(LATEST_LEGACY)
    ours = client.open_request("ping", LATEST_LEGACY)
    theirs = accepted(client.receive(Request(ours.id, "ping")))
    assert client.finish(theirs)
    assert client.outbound == (ours,)
