"""Having callbacks told of changes, in either era, and being subscribed to a resource."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from tests.client.listening import Scripted, noted, scripted
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, PeerError, open_memory
from trio_mcp.client.opening import open_client
from trio_mcp.transports.lines import memory_transport_pair

ERAS: Any = ("legacy", "modern")


# Callbacks, in either era


@pytest.mark.parametrize("era", ERAS)
async def test_change_callback_gets_list_changes_after_the_client_is_connected(era: Any) -> None:
    server, told = noted(), list[str]()
    async with open_memory(server, era=era, on_list_changed=told.append) as client:
        if era == "legacy":
            await client.ping()  # the handshake is complete before this
        server.remove_tool("spare")
        server.remove_prompt("greet")
        await client.ping()
        await wait_all_tasks_blocked()
        assert told == ["tools", "prompts"]


@pytest.mark.parametrize("era", ERAS)
async def test_change_callback_gets_resource_updates_until_unsubscribe(era: Any) -> None:
    server, told = noted(), list[str]()
    async with open_memory(server, era=era, on_resource_updated=told.append) as client:
        await client.subscribe("note://a")
        await client.subscribe("note://a")
        await client.subscribe("note://b")
        for uri in ("note://a", "note://b", "note://c"):
            await client.call_tool("change", {"uri": uri})
        await wait_all_tasks_blocked()
        assert told == ["note://a", "note://b"]
        await client.unsubscribe("note://a")
        await client.unsubscribe("note://a")
        for uri in ("note://a", "note://b"):
            await client.call_tool("change", {"uri": uri})
        await wait_all_tasks_blocked()
        assert told == ["note://a", "note://b", "note://b"]


@pytest.mark.parametrize("era", ERAS)
async def test_subscription_to_an_unknown_resource_raises_peer_error(era: Any) -> None:
    async with open_memory(noted(), era=era) as client:
        with pytest.raises(PeerError, match="Resource not found") as caught:
            await client.subscribe("file:///nowhere")
        assert caught.value.code == client.revision.resource_not_found


async def test_concurrent_subscriptions_to_one_resource_use_a_single_stream() -> None:
    server = noted()
    async with open_memory(server, era="modern") as client:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(client.subscribe, "note://a")
        await client.ping()
        await wait_all_tasks_blocked()
        assert server.statistics().listening == 1
        await client.unsubscribe("note://a")
        await client.ping()
        await wait_all_tasks_blocked()
        assert server.statistics().listening == 0


async def test_cancelled_subscribe_call_cancels_its_stream() -> None:
    async with scripted() as (client, server):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def leave() -> None:
                    await server.receive("subscriptions/listen")
                    scope.cancel()

                nursery.start_soon(leave)
                await client.subscribe("note://a")
        await server.receive("notifications/cancelled")


async def test_client_can_subscribe_again_after_the_server_ended_the_subscription() -> None:
    async with scripted() as (client, server), trio.open_nursery() as nursery:
        for _ in range(2):
            streams: list[Any] = []

            async def acknowledge(streams: list[Any] = streams) -> None:
                streams.append(await server.acknowledge())

            nursery.start_soon(acknowledge)
            await client.subscribe("note://a")
            await server.send({"id": streams[0], "result": {}})
            await wait_all_tasks_blocked()


@pytest.mark.parametrize(
    ("end", "level"), [({"result": {}}, "INFO"), ({"error": {"code": -32603, "message": "broken"}}, "WARNING")]
)
async def test_subscription_ended_by_the_server_is_logged(
    end: dict[str, Any], level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trio_mcp")
    async with scripted() as (client, server), trio.open_nursery() as nursery:
        ids: list[Any] = []

        async def acknowledge() -> None:
            ids.append(await server.acknowledge())

        nursery.start_soon(acknowledge)
        await client.subscribe("note://a")
        await server.send({"id": ids[0], **end})
        await wait_all_tasks_blocked()
    (record,) = [record for record in caplog.records if "note://a" in record.getMessage()]
    assert record.levelname == level


async def test_client_that_unsubscribes_does_not_log_that_the_subscription_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "trio_mcp")
    async with open_memory(noted(), era="modern", on_list_changed=print) as client:
        await client.subscribe("note://a")
        await client.unsubscribe("note://a")
        await client.subscribe("note://b")
    assert not [record for record in caplog.records if "no more" in record.getMessage()]


async def test_client_without_a_change_callback_opens_no_subscription_stream() -> None:
    server = noted()
    async with open_memory(server, era="modern") as client:
        await client.ping()
        assert server.statistics().listening == 0


async def test_client_subscribes_only_to_lists_whose_list_changed_is_declared() -> None:
    ours, theirs = memory_transport_pair()
    server, asked = Scripted(theirs), list[Any]()

    async def serve() -> None:
        await server.discover(tools={"listChanged": True}, prompts={}, resources={"subscribe": True})
        await server.acknowledge()
        asked.append(server.seen[-1]["params"]["notifications"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_client(ours, era="modern", on_list_changed=print):
            assert asked == [{"toolsListChanged": True}]


@pytest.mark.parametrize("answer", ["error", "silence"])
async def test_client_continues_if_the_server_refuses_subscriptions_listen(
    answer: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = memory_transport_pair()
    server = Scripted(theirs)

    async def serve() -> None:
        await server.discover(tools={"listChanged": True})
        request = await server.receive("subscriptions/listen")
        if answer == "error":
            await server.send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_client(ours, era="modern", on_list_changed=print, probe_timeout=2) as client:
            assert client.server_capabilities.tools is not None
    assert ("Method not found" in caplog.text) == (answer == "error")


async def test_subscribing_to_a_resource_that_is_not_acknowledged_raises_resource_not_found() -> None:
    async with scripted() as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(partial(server.acknowledge, resourceSubscriptions=["note://b"]))
        with pytest.raises(PeerError, match="Resource not found"):
            await client.subscribe("note://a")
        await server.receive("notifications/cancelled")


# What is left behind


async def listened(client: Client) -> None:
    async with client.listen(tools=True, uris=["note://a"]) as changes:
        await client.call_tool("change", {"uri": "note://a"})
        await anext(changes)


async def left_by_a_cancel(client: Client) -> None:
    with trio.CancelScope() as scope:
        async with client.listen(tools=True) as changes:
            scope.cancel()
            await anext(changes)


async def subscribed(client: Client) -> None:
    await client.subscribe("note://a")
    await client.unsubscribe("note://a")
    with pytest.raises(PeerError):
        await client.subscribe("nobody://a")


@pytest.mark.parametrize("use", [listened, left_by_a_cancel, subscribed])
async def test_subscription_streams_leave_no_reference_cycles(use: Callable[[Client], Awaitable[None]]) -> None:
    async with open_memory(noted(), era="modern") as client:
        await use(client)
        await wait_all_tasks_blocked()
        gc.disable()
        gc.freeze()  # what all other tests have left in this process takes long to look through
        try:
            for _ in range(20):
                await use(client)
            await wait_all_tasks_blocked()
            assert gc.collect() < 20
        finally:
            gc.enable()
