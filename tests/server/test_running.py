"""Lifespans, changes at run time, and what a server declares."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp import PeerError, RequestContext, Server, open_memory
from trio_mcp.types import ResourceTemplateReference, TextResourceContents


async def test_server_lifespan_is_entered_before_the_first_and_exited_after_the_last_request() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[dict[str, str]]:
        events.append(f"start {server.info.name}")
        yield {"db": "open"}
        events.append("stop")

    server = Server("s", lifespan=lifespan)

    @server.tool
    async def work(ctx: RequestContext) -> None:
        events.append(ctx.lifespan["db"])

    async with open_memory(server) as client:
        await client.call_tool("work")
    assert events == ["start s", "open", "stop"]


async def test_clients_are_notified_when_tools_are_added_or_removed() -> None:
    server, told = Server("s"), list[str]()

    @server.tool
    async def first() -> None: ...

    async with open_memory(server, era="legacy", on_list_changed=told.append) as client:
        await client.ping()  # the handshake is complete before this

        @server.tool
        async def second() -> None: ...

        await client.ping()
        await wait_all_tasks_blocked()
        assert told == ["tools"]
        assert [tool.name async for tool in client.list_tools()] == ["first", "second"]
        server.remove_tool("first")
        with pytest.raises(PeerError, match="Unknown tool"):
            await client.call_tool("first")
        await wait_all_tasks_blocked()
    assert told == ["tools", "tools"]


async def test_list_changed_notification_is_not_queued_while_an_equal_notification_waits_to_be_sent() -> None:
    server, told = Server("s"), list[str]()

    @server.tool
    async def grow() -> None:
        for number in range(10):

            async def made() -> None: ...

            server.tool(name=f"made-{number}")(made)

    async with open_memory(server, era="legacy", on_list_changed=told.append) as client:
        await client.call_tool("grow")
        await wait_all_tasks_blocked()
    assert told == ["tools"]


async def test_resource_subscribers_are_notified_only_of_their_resource() -> None:
    server, told = Server("s"), list[str]()

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    async with open_memory(server, era="legacy", on_resource_updated=told.append) as client:
        await client.subscribe("note://a")
        server.resource_updated("note://a")
        server.resource_updated("note://b")
        await client.ping()
        await client.unsubscribe("note://a")
        server.resource_updated("note://a")
        await client.ping()
        await wait_all_tasks_blocked()
    assert told == ["note://a"]


@pytest.mark.parametrize("uri", ["other://a", "note://" + "a" * 9000])
async def test_invalid_resource_subscription_is_rejected(uri: str) -> None:
    server = Server("s")

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    async with open_memory(server, era="legacy") as client:
        with pytest.raises(PeerError):
            await client.subscribe(uri)


async def test_server_declares_only_the_capabilities_of_its_registered_features() -> None:
    server = Server("s", logging=False)

    @server.prompt
    async def greet(name: str) -> str:
        return f"Greet {name}."

    async with open_memory(server) as client:
        declared = client.server_capabilities
    assert declared.prompts is not None
    assert (declared.tools, declared.resources, declared.logging, declared.completions) == (None, None, None, None)


async def test_resources_can_return_text_bytes_and_data() -> None:
    server = Server("s")

    @server.resource("r://text")
    async def text() -> str:
        return "hello"

    @server.resource("r://bytes", mime_type="image/png")
    async def data() -> bytes:
        return b"\x89"

    @server.resource("r://json/{number}")
    async def json(number: int) -> dict[str, int]:
        return {"twice": number * 2}

    async with open_memory(server) as client:
        assert (await client.read_resource("r://text")).contents[0] == TextResourceContents(
            "r://text", "hello", "text/plain"
        )
        assert (await client.read_resource("r://bytes")).contents[0].mime_type == "image/png"
        number = (await client.read_resource("r://json/21")).contents[0]
        assert isinstance(number, TextResourceContents)
        assert number.text == '{"twice":42}'
        with pytest.raises(PeerError, match="Invalid params"):
            await client.read_resource("r://json/many")


@pytest.mark.parametrize(("era", "code"), [("legacy", -32002), ("modern", -32602)])
async def test_unknown_resource_error_has_the_code_of_the_revision(era: Any, code: int) -> None:
    async with open_memory(Server("s"), era=era) as client:
        with pytest.raises(PeerError) as caught:
            await client.read_resource("r://none")
    assert (caught.value.code, caught.value.data) == (code, {"uri": "r://none"})


async def test_completion_values_are_limited_to_100_with_has_more() -> None:
    server = Server("s")

    @server.resource("r://{name}")
    async def resource(name: str) -> str:
        return name

    @server.completion(resource="r://{name}", argument="name")
    async def names(value: str, arguments: dict[str, str]) -> list[str]:
        return [f"{value}{arguments.get('suffix', '')}{number}" for number in range(150)]

    async with open_memory(server) as client:
        ref = ResourceTemplateReference("r://{name}")
        completion = await client.complete(ref, "name", "a", settled={"suffix": "-"})
        assert (await client.complete(ref, "other", "a")).values == []
        with pytest.raises(PeerError, match="unknown resource"):
            await client.complete(ResourceTemplateReference("r://x"), "name", "a")
    assert len(completion.values) == 100
    assert (completion.values[0], completion.total, completion.has_more) == ("a-0", 150, True)


async def test_request_is_answered_after_the_tasks_in_its_nursery_end() -> None:
    server, order = Server("s"), list[str]()

    @server.tool
    async def parent(ctx: RequestContext) -> str:
        async def child() -> None:
            await wait_all_tasks_blocked()
            order.append("child")

        ctx.nursery.start_soon(child)
        order.append("parent")
        return "done"

    async with open_memory(server) as client:
        await client.call_tool("parent")
        order.append("answer")
    assert order == ["parent", "child", "answer"]


async def test_exception_in_a_child_task_fails_only_its_request() -> None:
    server = Server("s")

    @server.tool
    async def parent(ctx: RequestContext) -> None:
        async def child() -> None:
            raise RuntimeError("inside")

        ctx.nursery.start_soon(child)
        await trio.sleep_forever()

    async with open_memory(server) as client:
        result = await client.call_tool("parent")
        assert (result.is_error, result.text) == (True, "internal error in tool parent")
        await client.ping()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_list_changed_capability_is_declared_only_if_clients_can_be_notified(era: Any) -> None:
    server = Server("s")

    @server.tool
    async def first() -> None: ...

    async with open_memory(server, era=era) as client:
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.tools.list_changed
