"""A server run stateless keeps nothing between requests."""

from __future__ import annotations

from typing import Literal

import pytest

from trio_mcp import NoBackChannel, PeerError, RequestContext, Server, open_memory
from trio_mcp.types import CreateMessageResult, TextContent


def server() -> Server:
    made = Server("s")

    @made.tool
    async def ask(ctx: RequestContext) -> str:
        assert ctx.stateless
        with pytest.raises(NoBackChannel, match="without stateless=True") as caught:
            await ctx.sample("hi", max_tokens=1)
        return str(caught.value.code)

    @made.resource("r://a")
    async def resource() -> str:
        return "a"

    return made


def refuse(_: object) -> CreateMessageResult:
    pytest.fail("nothing may be sent")


async def test_sampling_on_a_legacy_stateless_server_fails_without_sending() -> None:
    async with open_memory(server(), stateless=True, era="legacy", sampling=refuse) as client:
        assert (await client.call_tool("ask")).content == [TextContent("-32603")]


async def test_legacy_stateless_server_rejects_and_does_not_declare_subscriptions() -> None:
    async with open_memory(server(), stateless=True, era="legacy") as client:
        assert client.server_capabilities.resources is not None
        assert not client.server_capabilities.resources.subscribe
        for ask in (client.subscribe, client.unsubscribe):
            with pytest.raises(PeerError) as caught:
                await ask("r://a")
            assert caught.value.code == -32601


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_sv_10_one_server_object_can_be_served_stateless_or_with_state(
    era: Literal["legacy", "modern"],
) -> None:
    made = Server("s")

    @made.tool
    async def ask(ctx: RequestContext) -> str:
        return (await ctx.sample("hi", max_tokens=1)).model

    @made.tool
    async def plain() -> str:
        return "plain"

    def model(_: object) -> CreateMessageResult:
        return CreateMessageResult("assistant", TextContent("ho"), "m")

    async with (
        open_memory(made, era=era, sampling=model) as stateful,
        open_memory(made, stateless=True, era=era, sampling=model) as stateless,
    ):
        for client in (stateful, stateless):
            assert (await client.call_tool("plain")).text == "plain"
        assert (await stateful.call_tool("ask")).text == "m"
        with pytest.raises(PeerError, match="stateless") as caught:
            await stateless.call_tool("ask")
        assert caught.value.code == -32603
