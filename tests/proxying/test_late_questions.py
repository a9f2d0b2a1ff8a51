"""A legacy server doesn't say for which call it asks: a late question for one client is never put to another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawPeer, scripted
from tests.proxying.conftest import ALL
from tests.proxying.test_sharing import user

from trio_mcp import Client, open_http, open_memory, proxy, serve_http
from trio_mcp.client.opening import open_client
from trio_mcp.types import Proxy

QUESTION = {
    "message": "Your pin, Ann?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}


@asynccontextmanager
async def shared() -> AsyncIterator[tuple[Proxy, RawPeer]]:
    """A proxy whose clients share one connection, and the legacy server behind, which the test plays."""

    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={})
        ready.set()
        await over.wait()

    ready, over = trio.Event(), trio.Event()
    async with scripted(script) as (channel, peer), open_client(channel, era="legacy", forwards=ALL) as behind:
        await ready.wait()
        try:
            yield proxy(behind), peer
        finally:
            over.set()


async def next_call(peer: RawPeer) -> dict[str, Any]:
    while (message := await peer.read()).get("method") != "tools/call":
        if message.get("method") == "tools/list":  # which proxies ask for before a call over HTTP
            await peer.result(message, {"tools": []})
    return message


async def asked_in_a_call(client: Client, peer: RawPeer) -> dict[str, Any]:
    """The answer to a question that the server asks while ``client`` has a call in flight."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "pay")
        call = await next_call(peer)
        await peer.request("q", "elicitation/create", QUESTION)
        while (answer := await peer.read()).get("id") != "q":
            pass
        await peer.text(call)
    return answer


async def leave_a_call(client: Client, peer: RawPeer) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "pay")
        await next_call(peer)
        nursery.cancel_scope.cancel()
    await peer.until("notifications/cancelled")


async def make_a_call(client: Client, peer: RawPeer) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "pay")
        await peer.text(await next_call(peer))


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_shared_proxy_refuses_an_elicitation_that_a_cancelled_call_may_have_caused(era: Any) -> None:
    asked: list[str] = []
    async with (
        shared() as (way, peer),
        open_memory(way, era=era) as ann,
        open_memory(way, era=era, elicitation=user("bob", asked)) as bob,
    ):
        await leave_a_call(ann, peer)
        answer = await asked_in_a_call(bob, peer)
    assert "several clients share this server" in answer["error"]["message"]
    assert asked == []


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_shared_proxy_refuses_an_elicitation_that_a_call_of_a_disconnected_client_may_have_caused(
    era: Any,
) -> None:
    asked: list[str] = []
    async with shared() as (way, peer), open_memory(way, era=era, elicitation=user("bob", asked)) as bob:
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                async with open_memory(way, era=era) as ann, trio.open_nursery() as calls:
                    calls.start_soon(ann.call_tool, "pay")
                    await next_call(peer)
                    calls.cancel_scope.cancel()

            nursery.start_soon(leave)
        await peer.until("notifications/cancelled")
        assert "error" in await asked_in_a_call(bob, peer)
    assert asked == []


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_shared_proxy_forwards_an_elicitation_after_a_client_without_calls_disconnected(era: Any) -> None:
    asked: list[str] = []
    async with shared() as (way, peer), open_memory(way, era=era, elicitation=user("bob", asked)) as bob:
        for _ in range(2):
            async with open_memory(way, era=era) as ann:
                await make_a_call(ann, peer)
            assert "result" in await asked_in_a_call(bob, peer)
    assert asked == ["bob", "bob"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_shared_proxy_still_forwards_elicitations_to_the_client_that_cancelled_a_call(era: Any) -> None:
    asked: list[str] = []
    async with shared() as (way, peer), open_memory(way, era=era, elicitation=user("ann", asked)) as ann:
        await leave_a_call(ann, peer)
        assert (await asked_in_a_call(ann, peer))["result"]["content"] == {"name": "ann"}
    assert asked == ["ann"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_each_client_of_a_shared_proxy_gets_its_own_elicitation_while_no_other_call_runs(era: Any) -> None:
    asked: list[str] = []
    async with (
        shared() as (way, peer),
        open_memory(way, era=era, elicitation=user("ann", asked)) as ann,
        open_memory(way, era=era, elicitation=user("bob", asked)) as bob,
    ):
        for client in (ann, bob, ann):
            assert "result" in await asked_in_a_call(client, peer)
    assert asked == ["ann", "bob", "ann"]


@pytest.mark.parametrize("leaves", ["legacy", "modern"])
async def test_proxy_refuses_elicitations_for_anonymous_http_clients_after_any_client_cancelled_a_call(
    leaves: Any,
) -> None:
    asked: list[str] = []
    async with shared() as (way, peer), trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(serve_http, way, "127.0.0.1", 0, handle_signals=False))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        async with open_http(url, era=leaves) as ann, open_http(url, elicitation=user("bob", asked)) as bob:
            await make_a_call(ann, peer)
            assert "result" in await asked_in_a_call(bob, peer)
            await leave_a_call(ann, peer)
            assert "error" in await asked_in_a_call(bob, peer)
        nursery.cancel_scope.cancel()
    assert asked == ["bob"]
