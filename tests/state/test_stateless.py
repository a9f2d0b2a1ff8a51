"""Requests that each stand for itself."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp.jsonrpc.messages import Batch, Notification, Request, Response
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from trio_mcp.protocol.revisions import REVISIONS
from trio_mcp.state.events import BatchReceived, Event, Ignored, Refused, RequestReceived
from trio_mcp.state.stateless import StatelessState

MODERN = {"_meta": {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}}}
OLDEST_WITH_BATCHES = REVISIONS["2025-03-26"]
NEWEST_LEGACY = REVISIONS["2025-11-25"]


def modern(request_id: int | str = 1, method: str = "tools/list") -> Request:
    return Request(request_id, method, MODERN)


def accepted(event: Event) -> Any:
    assert isinstance(event, RequestReceived), event
    return event.request


def code(event: Event) -> int:
    assert isinstance(event, Refused), event
    return event.reply.code


def test_stateless_requests_with_the_same_id_can_run_concurrently() -> None:
    state = StatelessState()
    one, two = accepted(state.receive(modern(1))), accepted(state.receive(modern(1)))
    assert one is not two
    assert state.finish(one)
    assert not state.finish(one)
    assert state.finish(two)
    assert state.inbound == ()


def test_request_to_a_stateless_server_is_finished_as_soon_as_it_awaits_input() -> None:
    state = StatelessState()
    request = accepted(state.receive(modern()))
    state.park(request)
    assert not state.finish(request)


def test_cancelled_notification_to_a_stateless_server_cancels_nothing() -> None:
    state = StatelessState()
    request = accepted(state.receive(modern(1)))
    assert isinstance(state.receive(Notification("notifications/cancelled", {"requestId": 1})), Ignored)
    assert state.finish(request)


@pytest.mark.parametrize("message", [Response(1, {}), Batch((modern(),))], ids=["response", "batch"])
def test_modern_http_body_that_is_a_batch_or_a_response_gets_error_invalid_request(message: Any) -> None:
    assert code(StatelessState().receive(message)) == -32600


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "no/such"])
def test_stateless_request_for_a_method_the_modern_revision_lacks_gets_error_method_not_found(method: str) -> None:
    assert code(StatelessState().receive(modern(method=method))) == -32601


def test_stateless_legacy_request_is_served_without_a_handshake() -> None:
    state = StatelessState()
    request = accepted(state.receive_legacy(Request(1, "tools/list"), NEWEST_LEGACY))
    assert request.revision is NEWEST_LEGACY
    assert state.revision is None


def test_initialize_request_to_a_stateless_server_sets_no_revision_for_later_requests() -> None:
    state = StatelessState()
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    for _ in range(2):
        request = accepted(state.receive_legacy(Request(1, "initialize", params), NEWEST_LEGACY))
        assert request.revision.name == "2025-06-18"
    assert state.revision is None


def test_invalid_stateless_initialize_gets_error_invalid_params() -> None:
    event = StatelessState().receive_legacy(Request(1, "initialize", {"capabilities": 3}), NEWEST_LEGACY)
    assert code(event) == -32602


def test_stateless_batch_is_accepted_only_without_initialize_and_in_revisions_with_batches() -> None:
    state = StatelessState()
    batch = Batch((Request(1, "tools/list"), Request(2, "initialize", {}), Notification("notifications/initialized")))
    event = state.receive_legacy(batch, OLDEST_WITH_BATCHES)
    assert isinstance(event, BatchReceived)
    first, second, third = event.events
    assert accepted(first).id == 1
    assert code(second) == -32600
    assert isinstance(third, Ignored)
    assert code(state.receive_legacy(batch, NEWEST_LEGACY)) == -32600


def test_stateless_request_params_that_are_not_an_object_get_error_invalid_params() -> None:
    assert code(StatelessState().receive(Request(1, "tools/list", [1]))) == -32602
    assert code(StatelessState().receive(Request(1, "tools/list", {"_meta": 1}))) == -32602
