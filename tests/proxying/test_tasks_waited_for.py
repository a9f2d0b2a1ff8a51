"""Calls that become tasks behind a proxy: a client that speaks the same form of tasks looks after them itself, and for
others the proxy waits."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.proxying.conftest import ALL, Proxied
from tests.proxying.test_messages import MODERN
from tests.proxying.test_sharing import user
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, RequestContext, Server, ToolError, open_memory, proxy
from trio_mcp.jsonrpc.errors import PeerError
from trio_mcp.runtime.calls import Progress
from trio_mcp.testing import open_scripted_client
from trio_mcp.types import LogParams, Proxy

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def roaster(ended: list[str] | None = None) -> Server:
    server = Server("roaster")

    @server.tool(task="required")
    async def roast(minutes: float, ctx: RequestContext) -> str:
        if ctx.task is not None:
            await ctx.task.start()
            ctx.task.status("hot")
        try:
            await trio.sleep(60 * minutes)
        finally:
            if ended is not None:
                ended.append("cancelled" if ctx.cancellation else "done")
        return f"roasted for {minutes:g}"

    @server.tool(task="optional")
    async def grind(ctx: RequestContext) -> str:
        first = await ctx.elicit("who?", FORM)
        if ctx.task is not None:
            await ctx.task.start()
        await trio.sleep(60)
        second = await ctx.elicit("who now?", FORM)
        return f"{first.content} {second.content}"

    @server.tool(task="required")
    async def burn(ctx: RequestContext) -> str:
        raise ToolError("smoke")

    return server


async def test_client_without_task_support_gets_the_result_of_a_tool_that_runs_as_a_task_behind_a_proxy(
    autojump_clock: MockClock, proxied: Proxied, front: Any
) -> None:
    async with proxied(roaster()) as way, open_memory(way, era=front) as client:
        assert (await client.call_tool("roast", {"minutes": 5})).text == "roasted for 5"
        failed = await client.call_tool("burn")
        assert (failed.is_error, failed.text) == (True, "smoke")


async def test_proxy_forwards_status_messages_of_a_task_as_progress(
    autojump_clock: MockClock, proxied: Proxied, front: Any
) -> None:
    told: list[str | None] = []

    def on_progress(news: Progress) -> None:
        told.append(news.message)

    async with proxied(roaster()) as way, open_memory(way, era=front) as client:
        await client.call_tool("roast", {"minutes": 5}, on_progress=on_progress)
    assert told == ["hot"]


async def test_progress_and_logs_of_a_proxied_tool_with_optional_task_support_reach_the_client(
    autojump_clock: MockClock, proxied: Proxied
) -> None:
    server, told, logs = Server("grinder"), list[Progress](), list[Any]()

    @server.tool(task="optional")
    async def grind(ctx: RequestContext) -> str:
        for done in (1, 2):
            await trio.sleep(60)
            ctx.progress(done, 2)
            await ctx.log.info(done)
        return "ground"

    def on_log(message: LogParams) -> None:
        logs.append(message.data)

    async with proxied(server) as way, open_memory(way, era="legacy", revision="2025-06-18", on_log=on_log) as client:
        assert (await client.call_tool("grind", on_progress=told.append)).text == "ground"
    assert (told, logs) == ([Progress(1, 2), Progress(2, 2)], [1, 2])


async def test_client_of_a_proxy_answers_an_elicitation_from_a_task(
    autojump_clock: MockClock, proxied: Proxied, front: Any
) -> None:
    async with proxied(roaster()) as way, open_memory(way, era=front, elicitation=user("ann")) as client:
        assert (await client.call_tool("grind")).text == "{'name': 'ann'} {'name': 'ann'}"


async def test_proxied_call_that_is_cancelled_cancels_its_task_in_the_backend(
    autojump_clock: MockClock, proxied: Proxied, front: Any
) -> None:
    ended: list[str] = []
    async with proxied(roaster(ended)) as way, open_memory(way, era=front) as client:
        with trio.move_on_after(150):
            await client.call_tool("roast", {"minutes": 5})
        await wait_all_tasks_blocked()
        assert ended == ["cancelled"]
        assert (await client.call_tool("roast", {"minutes": 1})).text == "roasted for 1"


async def test_each_of_two_clients_of_a_shared_backend_answers_elicitations_of_its_own_task(
    autojump_clock: MockClock, front: Any, back: Any
) -> None:
    got: dict[str, str] = {}

    async def call(client: Client, name: str) -> None:
        got[name] = (await client.call_tool("grind")).text

    server = roaster()
    server.remove_tool("grind")

    @server.tool(task="required")
    async def grind(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        await trio.sleep(60)
        return str((await ctx.elicit("who?", FORM)).content)

    async with open_memory(server, era=back, forwards=ALL) as behind:
        shared = proxy(behind)
        async with (
            open_memory(shared, era=front, elicitation=user("one")) as one,
            open_memory(shared, era=front, elicitation=user("two")) as two,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(call, one, "one")
            nursery.start_soon(call, two, "two")
    assert got == {name: f"{{'name': '{name}'}}" for name in ("one", "two")}


async def test_client_of_a_revision_without_tasks_can_call_task_tools_through_a_proxy(
    autojump_clock: MockClock, back: Any
) -> None:
    async with (
        open_memory(roaster(), era=back, forwards=ALL) as behind,
        open_memory(proxy(behind), era="legacy", revision="2025-06-18") as client,
    ):
        assert (await client.call_tool("roast", {"minutes": 5})).text == "roasted for 5"


async def test_modern_client_without_tasks_gets_missing_capability_through_a_proxy(
    autojump_clock: MockClock, sharing: str
) -> None:
    async def refused(way: Proxy) -> None:
        async with open_memory(way, era="modern", tasks=False) as client:
            with pytest.raises(PeerError) as caught:
                await client.call_tool("roast", {"minutes": 5})
            assert caught.value.code == -32021

    if sharing == "own":
        await refused(proxy(lambda **options: open_memory(roaster(), **options)))
    else:
        async with open_memory(roaster(), era="modern", forwards=ALL) as behind:
            await refused(proxy(behind))


async def test_proxy_waits_for_the_task_of_a_call_if_handlers_of_the_proxy_answer_elicitations(
    autojump_clock: MockClock, front: Any, back: Any
) -> None:
    async with (
        open_memory(roaster(), era=back, elicitation=user("the middle")) as behind,
        open_memory(proxy(behind), era=front) as client,
    ):
        assert (await client.call_tool("grind")).text == "{'name': 'the middle'} {'name': 'the middle'}"
        assert (await client.call_tool("roast", {"minutes": 5})).text == "roasted for 5"


async def test_proxied_call_fails_if_another_client_cancels_its_task(autojump_clock: MockClock) -> None:
    async with open_memory(roaster(), era="legacy", forwards=ALL) as behind, trio.open_nursery() as nursery:

        async def cancel() -> None:
            await trio.sleep(10)
            (task,) = [each async for each in behind.list_tasks()]
            await behind.resume_task(task.id).cancel()

        nursery.start_soon(cancel)
        async with open_scripted_client(proxy(behind), MODERN, patience=100) as client:
            await client.expect_error(await client.call_tool("roast", {"minutes": 5}), -31002)
