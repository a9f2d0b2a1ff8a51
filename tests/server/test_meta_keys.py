"""Keys of ``_meta``: those of authors are checked where they are given, those of peers are kept as they came."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.interaction.memory_peer import LATEST_LEGACY, MODERN, connected
from trio.testing import MockClock

from trio_mcp import RequestContext, Server, open_memory
from trio_mcp.types import CallToolResult, TextContent

BAD = pytest.mark.parametrize("key", ["not a key", "io.modelcontextprotocol/mine"])


@BAD
def test_invalid_meta_key_of_a_tool_resource_or_prompt_raises_at_registration(key: str) -> None:
    server = Server("keys")

    async def function() -> str:
        return ""

    async def one(n: int) -> str:
        return ""

    for register in (
        server.tool(meta={key: 1}),
        server.resource("x://y", meta={key: 1}),
        server.prompt(meta={key: 1}),
    ):
        with pytest.raises(ValueError, match=key):
            register(function)
    with pytest.raises(ValueError, match=key):
        server.resource("x://{n}", meta={key: 1})(one)
    assert server.capabilities.tools is server.capabilities.resources is server.capabilities.prompts is None


@BAD
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_client_call_with_an_invalid_meta_key_raises_and_sends_nothing(
    autojump_clock: MockClock, key: str, era: Any
) -> None:
    called: list[None] = []
    server = Server("keys")

    @server.tool
    async def tool() -> None:
        called.append(None)

    async with open_memory(server, era=era) as client:
        with pytest.raises(ValueError, match=key):
            await client.call_tool("tool", meta={key: 1})
        assert called == []
        await client.call_tool("tool", meta={"com.example/k": 1})
        assert called == [None]


@BAD
async def test_elicitation_with_an_invalid_meta_key_raises_and_is_not_sent(autojump_clock: MockClock, key: str) -> None:
    server = Server("keys")

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        with pytest.raises(ValueError, match=key):
            await ctx.sample("?", max_tokens=1, meta={key: 1})
        with pytest.raises(ValueError, match=key):
            await ctx.elicit("?", {"type": "object", "properties": {}}, meta={key: 1})
        return "none asked"

    async with connected(server, capabilities={"sampling": {}, "elicitation": {}}) as peer:
        assert await peer.text("ask") == "none asked"
        assert [message for message in peer.messages if "method" in message] == []


@pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
async def test_tool_result_with_an_invalid_meta_key_is_sent_and_logged(
    autojump_clock: MockClock, revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("keys")

    @server.tool
    async def tool(key: str) -> CallToolResult:
        return CallToolResult([TextContent("t")], meta={key: 1})

    async with connected(server, revision) as peer:
        with caplog.at_level(logging.WARNING, "trio_mcp"):
            assert (await peer.call("tool", {"key": "com.example/k"}))["_meta"]["com.example/k"] == 1
            assert caplog.messages == []
            assert (await peer.call("tool", {"key": "not a key"}))["_meta"]["not a key"] == 1
            (message,) = caplog.messages
            assert "'not a key' is not a valid key of _meta" in message


@pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
async def test_invalid_meta_keys_sent_by_the_client_reach_the_handler_unchanged(
    autojump_clock: MockClock, revision: str
) -> None:
    odd = {"not a key": {"a": [1]}, "io.modelcontextprotocol/theirs": None, "": "empty", "é/": 1.5}
    server = Server("keys")
    seen: list[dict[str, Any]] = []

    @server.tool
    async def tool(ctx: RequestContext) -> None:
        seen.append(dict(ctx.meta))

    async with connected(server, revision) as peer:
        await peer.request("tools/call", {"name": "tool", "arguments": {}}, meta=odd)
        assert odd.items() <= seen[0].items()
