"""Streams for callbacks, which are opened anew when their server ends them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.client.listening import UPDATED, Scripted, scripted
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client
from trio_mcp.client.opening import open_client
from trio_mcp.transports.lines import memory_transport_pair


@asynccontextmanager
async def followed(told: list[str], **options: Any) -> AsyncIterator[tuple[Client, Scripted]]:
    """A client whose callbacks are told of ``note://a``, and the server that has acknowledged it."""
    async with (
        scripted(on_resource_updated=told.append, **options) as (client, server),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(server.acknowledge)
        await client.subscribe("note://a")
        yield client, server


@pytest.mark.parametrize("end", [{"result": {}}, {"error": {"code": -31000, "message": "Shutting down"}}, "cancelled"])
async def test_client_reopens_an_interrupted_subscription_stream_and_reports_a_change(
    end: Any, autojump_clock: MockClock
) -> None:
    told: list[str] = []
    async with followed(told) as (client, server):
        first = server.seen[-1]["id"]
        if end == "cancelled":
            await server.send({"method": "notifications/cancelled", "params": {"requestId": first}})
        else:
            await server.send({"id": first, **end})
        second = await server.acknowledge()
        assert server.seen[-1]["params"]["notifications"] == {"resourceSubscriptions": ["note://a"]}
        await wait_all_tasks_blocked()
        assert told == ["note://a"]
        await server.tell(second, UPDATED, uri="note://a")
        await wait_all_tasks_blocked()
        assert told == ["note://a"] * 2
        await client.unsubscribe("note://a")
        cancel = await server.receive("notifications/cancelled")
        assert cancel["params"]["requestId"] == second


async def test_cached_resource_is_requested_again_after_its_subscription_was_reopened(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []
    async with followed(told) as (client, server), trio.open_nursery() as nursery:

        async def read() -> None:
            await client.read_resource("note://a")

        async def answer() -> None:
            request = await server.receive("resources/read")
            await server.send({"id": request["id"], "result": {"contents": [], "ttlMs": 600_000}})

        nursery.start_soon(answer)
        await read()
        await read()
        await server.send({"id": server.seen[0]["id"] + 1, "result": {}})
        await server.acknowledge()
        await wait_all_tasks_blocked()
        nursery.start_soon(answer)
        await read()


async def test_client_reopens_a_subscription_stream_that_ends_immediately_with_growing_delays(
    autojump_clock: MockClock,
) -> None:
    async with followed([]) as (_, server):
        ends = [trio.current_time()]
        for _ in range(12):
            await server.send({"id": server.seen[-1]["id"], "result": {}})
            await server.acknowledge()
            ends.append(trio.current_time())
        pauses = [later - earlier for earlier, later in itertools.pairwise(ends)]
        bounds = [min(2.0**number, 60) for number in range(12)]
        assert all(bound / 2 <= pause <= bound for pause, bound in zip(pauses, bounds, strict=True))
        await trio.sleep(60)
        await server.send({"id": server.seen[-1]["id"], "result": {}})
        before = trio.current_time()
        await server.acknowledge()
        assert trio.current_time() - before <= 1, "it had lasted"


async def test_client_stops_reopening_a_subscription_after_method_not_found_but_not_after_other_errors(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with followed([]) as (client, server):
        await server.send({"id": server.seen[-1]["id"], "result": {}})
        for code in (-31000, -32603, -32601):
            request = await server.receive("subscriptions/listen")
            await server.send({"id": request["id"], "error": {"code": code, "message": "no"}})
        await trio.sleep(1000)
        await client.unsubscribe("note://a")
    assert [message["method"] for message in server.seen].count("subscriptions/listen") == 4
    assert "no longer reports changes of note://a: the peer answered: no (-32601)" in caplog.text


async def test_client_logs_and_drops_a_subscription_that_the_server_does_not_acknowledge_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    async with followed(told) as (_, server):
        await server.send({"id": server.seen[-1]["id"], "result": {}})
        await server.acknowledge(toolsListChanged=True)
        await server.receive("notifications/cancelled")
        await trio.sleep(1000)
    assert (told, "no longer reports changes of note://a" in caplog.text) == ([], True)


async def test_list_change_stream_is_reopened_after_an_interruption(autojump_clock: MockClock) -> None:
    ours, theirs = memory_transport_pair()
    server, told = Scripted(theirs), list[str]()

    async def serve() -> None:
        await server.discover(tools={"listChanged": True}, prompts={"listChanged": True})
        await server.send({"id": await server.acknowledge(), "result": {}})
        await server.acknowledge()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_client(ours, era="modern", on_list_changed=told.append):
            await trio.sleep(10)
    assert told == ["prompts", "tools"]


async def test_new_subscription_immediately_reopens_an_interrupted_stream(
    autojump_clock: MockClock,
) -> None:
    async with followed([]) as (client, server), trio.open_nursery() as nursery:
        await server.send({"id": server.seen[-1]["id"], "result": {}})
        await wait_all_tasks_blocked()
        before = trio.current_time()
        nursery.start_soon(server.acknowledge)
        await client.subscribe("note://a")
        assert trio.current_time() == before
        await trio.sleep(1000)
    assert [message["method"] for message in server.seen].count("subscriptions/listen") == 2, "the other was given up"


async def test_change_callbacks_receive_only_changes_that_their_stream_subscribed_to() -> None:
    """2026-07-28 subscriptions: what is on no stream, or was not asked for on it, is of no subscription."""
    told: list[str] = []
    async with followed(told, on_list_changed=told.append) as (_, server):
        stream = server.seen[-1]["id"]
        await server.send({"method": UPDATED, "params": {"uri": "note://a"}})
        await server.send({"method": "notifications/tools/list_changed"})
        await server.tell(stream, "notifications/tools/list_changed")
        await server.tell(stream + 1, UPDATED, uri="note://a")
        await server.tell(stream, UPDATED, uri="note://a/part")
        await wait_all_tasks_blocked()
        assert told == ["note://a/part"]
