"""What is kept of a request of the peer, and how little of it while it waits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.state.peers import accepted, initialize, meta_of, modern

from trio_mcp.jsonrpc.codec import encode_value
from trio_mcp.jsonrpc.messages import Request
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.requests import Continuation, InboundRequest


def request_of(size: int, **params: Any) -> InboundRequest:
    return accepted(ConnectionState("server").receive(Request(1, "tools/list", {"_meta": meta_of(), **params}, size)))


def test_newly_received_request_has_no_error_and_no_input_responses() -> None:
    request = request_of(100)
    assert (request.error, request.failed, request.continuation, request.packed) == (None, False, None, None)


@pytest.mark.parametrize("size", [513, 100_000])
def test_large_request_that_is_packed_into_json_text_is_equal_after_unpacking(size: int) -> None:
    request = request_of(size, name="größe", arguments=[1, {"a": None}])
    params, meta = request.params, request.meta
    request.pack()
    assert (request.params, request.meta, type(request.packed)) == ({}, {}, bytes)
    request.unpack()
    assert (request.params, request.meta, request.packed) == (params, meta, None)
    assert request.meta is request.params["_meta"], "it is kept once"


@pytest.mark.parametrize("size", [0, 511, 512])
def test_small_request_is_not_packed_into_json_text(size: int) -> None:
    request = request_of(size, name="x")
    params = request.params
    request.pack()
    assert (request.params is params, request.meta, request.packed) == (True, params["_meta"], None)


def test_request_can_be_packed_into_json_text_that_was_already_encoded() -> None:
    request = request_of(10, name="x")
    params, text = request.params, encode_value(request.params)
    request.pack_as(text)
    assert (request.params, request.meta, request.packed is text) == ({}, {}, True)
    request.unpack()
    assert (request.params, request.meta) == (params, params["_meta"])


def test_arguments_with_many_objects_are_replaced_by_their_json_text_to_save_memory() -> None:
    request = request_of(1_000_000, name="x", arguments={"rows": [[] for _ in range(1000)]})
    request.put_away("arguments")
    assert type(request.params["arguments"]) is msgspec.Raw
    assert request.params["name"] == "x"


def test_arguments_with_one_long_string_are_not_replaced_by_their_json_text() -> None:
    request = request_of(1_000_000, name="x", arguments={"text": "x" * 100_000})
    params = request.params
    request.put_away("arguments")
    assert request.params is params
    assert params["arguments"] == {"text": "x" * 100_000}


def test_unpacking_a_request_that_is_not_packed_changes_nothing() -> None:
    request = request_of(1000, name="x")
    for _ in range(2):
        request.pack()
        request.unpack()
        params = request.params
        request.unpack()
        assert request.params is params


@pytest.mark.parametrize("params", [{}, {"_meta": None}])
def test_request_without_meta_still_has_no_meta_after_packing_and_unpacking(params: dict[str, Any]) -> None:
    server = ConnectionState("server")
    server.finish(accepted(server.receive(initialize(LATEST_LEGACY.name))))
    request = accepted(server.receive(Request(1, "tools/list", params, 1000)))
    request.pack()
    request.unpack()
    assert (request.params, request.meta) == (params, {})


def test_undeclared_client_capabilities_are_reported_as_missing() -> None:
    server = ConnectionState("server")
    declared = meta_of(**{"io.modelcontextprotocol/clientCapabilities": {"roots": {}, "sampling": {"tools": {}}}})
    request = accepted(server.receive(modern(1, _meta=declared)))
    assert request.revision is LATEST_MODERN
    asked = ["elicitation", "roots", "sampling", "sampling.tools", "sampling.context"]
    assert request.missing(asked) == ["elicitation", "sampling.context"]
    assert request.missing([]) == []


def test_two_request_objects_with_equal_contents_are_not_equal() -> None:
    assert request_of(1) != request_of(1)


def test_continuation_of_a_request_without_a_given_request_state_has_an_empty_state() -> None:
    first, other = Continuation({"q": 1}), Continuation({})
    assert (first.responses, first.state, first.answers) == ({"q": 1}, "", {})
    assert first.answers is not other.answers
