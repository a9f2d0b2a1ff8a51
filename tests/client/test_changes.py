"""What a client learns of changes, before anybody is told."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Server, open_memory
from trio_mcp.client.cache import Change


def noted() -> Server:
    server = Server("noted")

    @server.tool
    async def change() -> None:
        server.remove_tool("change")
        server.resource_updated("note://a")

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    return server


async def test_internal_watchers_receive_each_change_even_if_the_application_has_no_change_callback() -> None:
    seen: list[Change] = []
    async with open_memory(noted(), era="legacy") as client:
        client._callbacks.watchers.append(seen.append)
        await client.subscribe("note://a")
        await client.call_tool("change")
    assert seen == [Change("tools"), Change("resource", "note://a")]


async def test_internal_watchers_receive_a_change_before_the_change_callback_of_the_application() -> None:
    order, told = list[object](), trio.Event()

    async def on_list_changed(kind: str) -> None:
        await told.wait()
        order.append(kind)

    async with open_memory(noted(), era="legacy", on_list_changed=on_list_changed) as client:
        client._callbacks.watchers.append(order.append)
        await client.subscribe("note://a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "change")
            await wait_all_tasks_blocked()
            assert order == [Change("tools"), Change("resource", "note://a")]
            told.set()
    assert order[2:] == ["tools"]
