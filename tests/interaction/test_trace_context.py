"""The trace context of a request reaches its handler, and the requests and calls that the handler makes."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import RequestContext, Server, WorkerContext, open_memory
from trio_mcp.types import CreateMessageParams, CreateMessageResult, Root, TextContent, TraceContext

from .memory_peer import LATEST_LEGACY, MODERN, connected

TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "rojo=00f067aa0ba902b7",
    "baggage": "user=alice",
}
OTHER = {"traceparent": "00-11111111111111111111111111111111-2222222222222222-00"}
ERAS = pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
BOTH_ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def told(trace: TraceContext | None) -> Any:
    """As a tool's result."""
    return (
        None
        if trace is None
        else {"traceparent": trace.traceparent, "tracestate": trace.tracestate, "baggage": trace.baggage}
    )


def recorder(heard: list[dict[str, Any]]) -> Server:
    """A server whose tool keeps the ``_meta`` it is called with."""
    server = Server("inner")

    @server.tool
    async def record(ctx: RequestContext) -> None:
        heard.append({key: value for key, value in ctx.meta.items() if "/" not in key})

    return server


@ERAS
async def test_handler_reads_the_trace_context_of_its_request(revision: str) -> None:
    server = Server("outer")

    @server.tool
    async def where(ctx: RequestContext) -> dict[str, Any]:
        return {"trace": told(ctx.trace)}

    @server.tool
    def where_in_a_thread(ctx: WorkerContext) -> dict[str, Any]:
        return {"trace": told(ctx.trace)}

    async with connected(server, revision) as peer:
        for tool in ("where", "where_in_a_thread"):
            for meta, expected in ((TRACE, TRACE), ({}, None), ({"traceparent": "00-nonsense"}, None)):
                reply = await peer.request("tools/call", {"name": tool, "arguments": {}}, meta=meta)
                assert reply["result"]["structuredContent"]["trace"] == expected


async def test_requests_to_the_client_contain_the_trace_context(autojump_clock: MockClock) -> None:
    server = Server("outer")

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.list_roots)
        await ctx.sample("?", max_tokens=1, meta={"mine": 1, **OTHER})

    async with connected(server, capabilities={"roots": {}, "sampling": {}}) as peer:
        await peer.send(peer.message("tools/call", {"name": "ask", "arguments": {}}, meta=TRACE))
        question = await peer.question("roots/list")
        assert question["params"]["_meta"] == TRACE
        await peer.answer(question, {"roots": []})
        question = await peer.question("sampling/createMessage")
        assert question["params"]["_meta"] == {"mine": 1, "baggage": "user=alice", **OTHER}


async def test_request_to_the_client_without_trace_context_has_no_meta(autojump_clock: MockClock) -> None:
    server = Server("outer")

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        await ctx.list_roots()

    async with connected(server, capabilities={"roots": {}}) as peer:
        await peer.start("ask")
        assert "params" not in await peer.question("roots/list")


@BOTH_ERAS
async def test_calls_from_a_handler_to_other_servers_contain_the_trace_context(
    autojump_clock: MockClock, era: Any
) -> None:
    heard: list[dict[str, Any]] = []
    outer = Server("outer")

    @outer.tool
    async def relay(ctx: RequestContext) -> None:
        await inner.call_tool("record")
        await inner.call_tool("record", meta=OTHER)
        ctx.nursery.start_soon(inner.call_tool, "record")

    async with open_memory(recorder(heard), era=era) as inner, open_memory(outer, era=era) as client:
        await inner.call_tool("record")
        await client.call_tool("relay", meta=TRACE)
    assert heard == [{}, TRACE, {**OTHER, "baggage": "user=alice"}, TRACE]


async def test_concurrent_requests_keep_their_own_trace_contexts(autojump_clock: MockClock) -> None:
    heard: list[dict[str, Any]] = []
    outer = Server("outer")

    @outer.tool
    async def relay(seconds: int) -> None:
        await trio.sleep(seconds)
        await inner.call_tool("record")

    async with open_memory(recorder(heard)) as inner, open_memory(outer) as client, trio.open_nursery() as nursery:
        for n in range(1, 10):
            meta = {"traceparent": f"00-{n:032x}-{n:016x}-00"} if n % 3 else None
            nursery.start_soon(lambda n=n, meta=meta: client.call_tool("relay", {"seconds": 10 - n}, meta=meta))
    assert [entry.get("traceparent") for entry in reversed(heard)] == [
        f"00-{n:032x}-{n:016x}-00" if n % 3 else None for n in range(1, 10)
    ]


@BOTH_ERAS
async def test_calls_made_by_a_sampling_handler_contain_the_trace_context(autojump_clock: MockClock, era: Any) -> None:
    heard: list[dict[str, Any]] = []
    asking = Server("asking")

    @asking.tool
    async def ask(ctx: RequestContext) -> None:
        await ctx.sample("?", max_tokens=1)

    async def sample(_: CreateMessageParams) -> CreateMessageResult:
        await inner.call_tool("record")
        async with open_memory(relaying) as relay:  # what it calls works for its own request again
            await relay.call_tool("relay", meta=OTHER)
        return CreateMessageResult("assistant", TextContent("!"), "model")

    relaying = Server("relaying")

    @relaying.tool
    async def relay() -> None:
        await inner.call_tool("record")

    async with (
        open_memory(recorder(heard)) as inner,
        open_memory(asking, era=era, sampling=sample) as client,
    ):
        await client.call_tool("ask", meta=TRACE)
        await inner.call_tool("record")
        await client.call_tool("ask")
    theirs = {**OTHER, "baggage": "user=alice"}
    assert heard == [TRACE, theirs, {}, {}, OTHER]


@BOTH_ERAS
async def test_trace_context_given_in_a_call_overrides_the_trace_context_of_the_handled_server_request(
    autojump_clock: MockClock, era: Any
) -> None:
    """A handler is a host, too: what its own call names goes before what its request names."""
    heard: list[dict[str, Any]] = []
    asking, outer = Server("asking"), Server("outer")

    @asking.tool
    async def ask(ctx: RequestContext) -> None:
        await ctx.list_roots()

    async def roots() -> list[Root]:
        await inner.call_tool("record")
        return []

    @outer.tool
    async def relay() -> None:
        async with open_memory(asking, era=era, roots=roots) as client:
            await client.call_tool("ask", meta=OTHER)
            await client.call_tool("ask")

    async with open_memory(recorder(heard)) as inner, open_memory(outer) as client:
        await client.call_tool("relay", meta=TRACE)
    assert heard == [{**OTHER, "baggage": "user=alice"}, TRACE]


async def test_handler_that_awaited_input_uses_the_trace_context_of_the_retry(autojump_clock: MockClock) -> None:
    heard: list[dict[str, Any]] = []
    asking = Server("asking")

    @asking.tool
    async def ask(ctx: RequestContext) -> dict[str, Any]:
        await inner.call_tool("record")
        before = ctx.trace
        await ctx.list_roots()
        await inner.call_tool("record")
        return {"before": told(before), "after": told(ctx.trace)}

    call = {"name": "ask", "arguments": {}}
    async with open_memory(recorder(heard)) as inner, connected(asking, MODERN, {"roots": {}}) as peer:
        asked = (await peer.request("tools/call", call, meta=TRACE))["result"]
        answers = {key: {"roots": []} for key in asked["inputRequests"]}
        retry = {**call, "inputResponses": answers, "requestState": asked["requestState"]}
        result = (await peer.request("tools/call", retry, meta=OTHER))["result"]["structuredContent"]
    assert heard == [TRACE, OTHER]
    assert result["before"] == TRACE
    assert result["after"] == {**OTHER, "tracestate": None, "baggage": None}


async def test_client_opened_inside_a_handler_sends_the_trace_context_of_the_handler(
    autojump_clock: MockClock,
) -> None:
    heard: list[dict[str, Any]] = []
    outer = Server("outer")

    @outer.tool
    async def relay() -> None:
        async with open_memory(recorder(heard)) as inner:
            await inner.call_tool("record")

    async with open_memory(outer) as client:
        await client.call_tool("relay", meta=TRACE)
    assert heard == [TRACE]
