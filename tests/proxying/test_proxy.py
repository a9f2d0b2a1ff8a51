"""A client sees through a proxy what it would see without it, whichever era either side lives in."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import trio
from tests.proxying.conftest import Proxied
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import (
    CancelCause,
    Cancellation,
    CodedError,
    PeerError,
    Progress,
    RequestContext,
    Server,
    ToolError,
    open_memory,
    proxy,
)
from trio_mcp.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    LogParams,
    PromptReference,
    Root,
    TextContent,
)

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


async def test_proxy_shows_the_name_capabilities_and_tools_of_its_backend(
    autojump_clock: MockClock, front: Any, proxied: Proxied
) -> None:
    server = Server("behind", "7", instructions="ask nicely")

    @server.tool
    async def act() -> str:
        return "done"

    async with proxied(server) as proxy, open_memory(proxy, era=front) as client:
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.version) == ("behind", "7")
        assert client.instructions == "ask nicely"
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.prompts is None
        assert (await client.call_tool("act")).text == "done"
        await client.ping()


async def test_proxy_forwards_paginated_lists_prompts_completions_and_resources(
    autojump_clock: MockClock, front: Any, proxied: Proxied
) -> None:
    server = Server("s", page_size=2)
    for number in range(5):

        @server.tool(name=f"tool-{number}")
        async def act(n: int = number) -> str:
            return f"acted {n}"

    @server.prompt
    async def greet(name: str) -> str:
        return f"hello {name}"

    @server.completion(argument="name", prompt="greet")
    async def names(value: str) -> list[str]:
        return [f"{value}da"]

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return f"about {name}"

    async with proxied(server) as proxy, open_memory(proxy, era=front) as client:
        assert [tool.name async for tool in client.list_tools()] == [f"tool-{number}" for number in range(5)]
        assert (await client.call_tool("tool-3")).text == "acted 3"
        (message,) = (await client.get_prompt("greet", {"name": "Ada"})).messages
        assert message.content == TextContent("hello Ada")
        assert (await client.complete(PromptReference("greet"), "name", "A")).values == ["Ada"]
        assert [each.uri_template async for each in client.list_resource_templates()] == ["note://{name}"]
        (contents,) = (await client.read_resource("note://x")).contents
        assert contents.text == "about x"  # pyright: ignore[reportAttributeAccessIssue] it is text


async def test_progress_and_logs_of_a_proxied_call_arrive_in_order_before_the_result(
    autojump_clock: MockClock, front: Any, proxied: Proxied
) -> None:
    server = Server("s")

    @server.tool
    async def work(ctx: RequestContext) -> str:
        for step in range(3):
            ctx.progress(step + 1, 3, f"step {step}")
            await ctx.log.info(step)
            await trio.sleep(1)
        return "done"

    said: list[Any] = []

    def on_log(log: LogParams) -> None:
        said.append(log.data)

    async with proxied(server) as proxy, open_memory(proxy, era=front, on_log=on_log) as client:
        await client.set_log_level("info")
        assert (await client.call_tool("work", on_progress=said.append)).text == "done"
        assert [each for each in said if isinstance(each, int)] == [0, 1, 2]
        assert [each for each in said if not isinstance(each, int)] == [
            Progress(step + 1, 3, f"step {step}") for step in range(3)
        ]


async def test_proxy_forwards_only_logs_at_or_above_the_requested_level(
    autojump_clock: MockClock, front: Any, proxied: Proxied
) -> None:
    server = Server("s")

    @server.tool
    async def talk(ctx: RequestContext) -> str:
        for level in ("debug", "warning", "error"):
            await ctx.log.log(level, level)
        return "done"

    said: list[Any] = []
    async with (
        proxied(server) as proxy,
        open_memory(proxy, era=front, on_log=lambda log: said.append(log.data)) as client,
    ):
        for level, wanted in (
            ("error", ["error"]),
            ("debug", ["debug", "warning", "error"]),
            ("warning", ["warning", "error"]),
        ):
            await client.set_log_level(level)
            await client.call_tool("talk")
            assert said == wanted
            said.clear()


async def test_proxy_forwards_sampling_elicitation_and_roots_requests_and_answers(
    autojump_clock: MockClock, front: Any, proxied: Proxied
) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        sampled = await ctx.sample("what?", max_tokens=3)
        filled = await ctx.elicit("who?", FORM)
        roots = await ctx.list_roots()
        return f"{sampled.model}, {filled.content}, {[root.uri for root in roots]}"

    async def sample(params: CreateMessageParams) -> CreateMessageResult:
        assert params.max_tokens == 3
        return CreateMessageResult("assistant", TextContent("that"), "m1")

    async def elicit(params: ElicitFormParams) -> dict[str, Any]:
        return {"name": params.message}

    async with (
        proxied(server) as proxy,
        open_memory(proxy, era=front, sampling=sample, elicitation=elicit, roots=[Root("file:///a")]) as client,
    ):
        assert (await client.call_tool("ask")).text == "m1, {'name': 'who?'}, ['file:///a']"


async def test_proxy_sends_no_elicitation_to_a_client_without_the_capability(
    autojump_clock: MockClock, front: Any, proxied: Proxied
) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        try:
            await ctx.elicit("who?", FORM)
        except (CodedError, PeerError) as error:
            raise ToolError("refused") from error
        return "answered"

    async with proxied(server) as proxy, open_memory(proxy, era=front) as client:
        result = await client.call_tool("ask")
        assert (result.is_error, result.text) == (True, "refused")


async def test_proxy_forwards_a_cancellation_with_its_reason_to_the_handler(
    autojump_clock: MockClock, front: Any, proxied: Proxied
) -> None:
    server = Server("s")
    seen: list[Cancellation | None] = []

    @server.tool
    async def wait(ctx: RequestContext) -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            seen.append(ctx.cancellation)

    begun = trio.Event()
    async with proxied(server) as proxy, open_memory(proxy, era=front) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "wait")
                await begun.wait()
                scope.cancel(reason="the user pressed stop")
        await wait_all_tasks_blocked()
        (cancellation,) = seen
        assert cancellation is not None
        assert (cancellation.cause, cancellation.reason) == (CancelCause.PEER, "the user pressed stop")
        await client.ping()
        assert proxy.statistics().in_flight == 0


async def test_proxied_call_cancelled_during_an_elicitation_cancels_client_and_server_handlers(
    autojump_clock: MockClock, front: Any, proxied: Proxied
) -> None:
    server = Server("s")
    story: list[str] = []

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        try:
            await ctx.elicit("who?", FORM)
        finally:
            assert ctx.cancellation is not None
            story.append(f"handler: {ctx.cancellation.reason}")

    async def user(_: ElicitFormParams) -> dict[str, Any]:
        asked.set()
        try:
            await trio.sleep_forever()
        finally:
            story.append("user is left alone")

    asked = trio.Event()
    async with proxied(server) as proxy, open_memory(proxy, era=front, elicitation=user) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "ask")
                await asked.wait()
                scope.cancel(reason="enough")
        await wait_all_tasks_blocked()
        assert sorted(story) == ["handler: enough", "user is left alone"]
        assert (proxy.statistics().in_flight, proxy.statistics().parked) == (0, 0)


@pytest.mark.parametrize("back", ["legacy"])
async def test_elicitation_cancelled_by_the_backend_cancels_the_handler_of_the_proxied_client(
    autojump_clock: MockClock, back: str, proxied: Proxied
) -> None:
    """Between two modern sides there is no way to say it: what was asked stays asked until the client comes back."""
    server = Server("s")
    story: list[str] = []

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        with trio.move_on_after(5):
            await ctx.elicit("who?", FORM)
        story.append("handler goes on")
        return "nobody answered"

    async def user(_: ElicitFormParams) -> dict[str, Any]:
        try:
            await trio.sleep(100)
        finally:
            story.append("user is left alone")
        return {"name": "late"}

    async with proxied(server) as proxy, open_memory(proxy, era="legacy", elicitation=user) as client:
        assert (await client.call_tool("ask")).text == "nobody answered"
    assert sorted(story) == ["handler goes on", "user is left alone"]


@pytest.mark.parametrize("data", [None, {"why": [1, "x"]}])
async def test_proxy_forwards_error_code_message_and_data(
    autojump_clock: MockClock, front: Any, proxied: Proxied, data: Any
) -> None:
    server = Server("s")

    @server.tool
    async def fail() -> None:
        raise CodedError(1234, "not today", data)

    async with proxied(server) as proxy, open_memory(proxy, era=front) as client:
        with pytest.raises(PeerError) as caught:
            await client.call_tool("fail")
        assert (caught.value.code, caught.value.message, caught.value.data) == (1234, "not today", data)
        with pytest.raises(PeerError, match="no such tool"):
            await client.call_tool("no such tool")


async def test_proxy_forwards_list_changes_and_subscribed_resource_updates(
    autojump_clock: MockClock, front: Any, proxied: Proxied
) -> None:
    server = Server("s")

    @server.tool
    async def act() -> None: ...

    @server.resource("note://a")
    async def note() -> str:
        return "a"

    seen: list[str] = []
    async with (
        proxied(server) as proxy,
        open_memory(proxy, era=front, on_list_changed=seen.append, on_resource_updated=seen.append) as client,
    ):
        await client.subscribe("note://a")
        server.tool(name="more")(act)
        server.resource_updated("note://a")
        server.resource_updated("note://b")
        await wait_all_tasks_blocked()
        assert sorted(seen) == ["note://a", "tools"]
        await client.unsubscribe("note://a")
        server.resource_updated("note://a")
        await wait_all_tasks_blocked()
        assert len(seen) == 2
        with pytest.raises(PeerError):
            await client.subscribe("note://unknown")


async def test_proxy_sends_only_the_requested_changes_on_a_listen_stream(
    autojump_clock: MockClock, proxied: Proxied
) -> None:
    server = Server("s")

    @server.tool
    async def act() -> None: ...

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    async with proxied(server) as proxy, open_memory(proxy, era="modern") as client:
        async with (
            client.listen(tools=True, uris=["note://a"]) as changes,
            client.listen(prompts=True, uris=["note://b"]) as others,
        ):
            assert changes.acknowledged.tools_list_changed is True
            assert others.acknowledged.prompts_list_changed is None
            server.resource_updated("note://a")
            server.tool(name="more")(act)
            server.resource_updated("note://b")
            assert [(await anext(changes)).uri, (await anext(changes)).kind] == ["note://a", "tools"]
            assert (await anext(others)).uri == "note://b"
        await wait_all_tasks_blocked()
        assert proxy.statistics().listening == 0


async def test_each_of_100_concurrent_proxied_calls_receives_its_own_progress_and_result(
    autojump_clock: MockClock, front: Any, proxied: Proxied
) -> None:
    server = Server("s")

    @server.tool
    async def answer(n: int, ctx: RequestContext) -> str:
        ctx.progress(n, message=str(n))
        await trio.sleep(n % 7)
        return f"answer {n}"

    async def call(n: int) -> None:
        told: list[Progress] = []
        assert (await client.call_tool("answer", {"n": n}, on_progress=told.append)).text == f"answer {n}"
        assert [each.message for each in told] == [str(n)]

    async with (
        proxied(server) as proxy,
        open_memory(proxy, era=front) as client,
        trio.open_nursery() as nursery,
    ):
        for n in range(1, 101):
            nursery.start_soon(call, n)


async def test_two_chained_proxies_forward_the_deadline_of_a_call_unchanged(
    autojump_clock: MockClock, front: Any, proxied: Proxied
) -> None:
    server, left = Server("s"), list[float]()

    @server.tool
    async def hang() -> None:
        left.append(trio.current_effective_deadline() - trio.current_time())
        await trio.sleep_forever()

    async with proxied(server) as first, open_memory(proxy(partial(open_memory, first)), era=front) as client:
        with trio.move_on_after(10):
            await client.call_tool("hang")
        assert left == [10 + 1], "the grace is that of the last hop alone"
        await wait_all_tasks_blocked()
        assert server.statistics().in_flight == 0


@pytest.mark.parametrize("told", [-1, 1.5, "10", None, True, 10**15, [1]])
async def test_invalid_remaining_time_in_a_proxied_request_sets_no_deadline(
    autojump_clock: MockClock, front: Any, proxied: Proxied, told: Any
) -> None:
    server, left = Server("s"), list[float]()

    @server.tool
    async def look() -> None:
        left.append(trio.current_effective_deadline())

    async with proxied(server) as shown, open_memory(shown, era=front) as client:
        await client.call_tool("look", meta={"trio-mcp/remainingMs": told})
    assert left == [math.inf]
