"""Tags: what is disabled is in no listing and unknown, clients are told, and what is under way goes on (AR-05)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable
from typing import Any, Literal

import pytest
import trio
from tests.interaction.memory_peer import MODERN, connected
from tests.server.extension import about, knowing, task_of
from tests.tasks.callers import calling, settings
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import PeerError, RequestContext, Server, TaskSettings, open_memory
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.types import ElicitResult, PromptReference, ResourceTemplateReference

Era = Literal["legacy", "modern"]
ERAS: list[Era] = ["legacy", "modern"]
NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


def made(page_size: int | None = None) -> Server:
    server = Server("s", page_size=page_size)

    @server.tool
    async def first() -> str:
        return "first"

    @server.tool(tags=["beta"])
    async def second() -> str:
        return "second"

    @server.tool(tags=["beta", "admin"])
    async def third() -> str:
        return "third"

    @server.tool
    async def last() -> str:
        return "last"

    @server.resource("note://{name}", tags=["beta"])
    async def note(name: str) -> str:
        return f"beta {name}"

    @server.resource("note://{+path}")
    async def path(path: str) -> str:
        return f"path {path}"

    @server.resource("about://us", tags=["beta"])
    async def about_us() -> str:
        return "us"

    @server.prompt(tags=["beta"])
    async def greet(name: str) -> str:
        return f"Hello {name}"

    @server.completion(argument="name", prompt="greet")
    async def names(value: str) -> list[str]:
        return ["Ada"]

    @server.completion(argument="name", resource="note://{name}")
    async def note_names(value: str) -> list[str]:
        return ["a"]

    return server


async def named(things: AsyncIterable[Any]) -> list[str]:
    return [thing.name async for thing in things]


async def refused(call: Any) -> PeerError:
    with pytest.raises(PeerError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("era", ERAS)
async def test_disabled_item_is_not_listed_and_a_request_for_the_item_gets_the_error_for_an_unknown_item(
    era: Era,
) -> None:
    server = made()
    server.disable("beta")
    async with open_memory(server, era=era) as client:
        assert await named(client.list_tools()) == ["first", "last"]
        assert await named(client.list_resources()) == []
        assert await named(client.list_resource_templates()) == ["path"]
        assert await named(client.list_prompts()) == []
        disabled, unknown = [await refused(client.call_tool(name)) for name in ("second", "secxnd")]
        assert (disabled.code, disabled.message.replace("second", "secxnd")) == (unknown.code, unknown.message)
        disabled, unknown = [await refused(client.read_resource(f"about://{who}")) for who in ("us", "me")]
        assert (disabled.code, disabled.message) == (unknown.code, unknown.message)
        disabled, unknown = [await refused(client.get_prompt(name, {"name": "a"})) for name in ("greet", "grext")]
        assert (disabled.code, disabled.message.replace("greet", "grext")) == (unknown.code, unknown.message)
        for reference in (PromptReference("greet"), ResourceTemplateReference("note://{name}")):
            assert (await refused(client.complete(reference, "name", ""))).code == -32602
        assert (await client.read_resource("note://a")).text == "path a"
        server.enable("beta")
        assert (await client.read_resource("note://a")).text == "beta a"
        assert (await client.call_tool("third")).text == "third"


async def test_reenabled_item_keeps_its_list_position_and_cursors_stay_valid() -> None:
    async with connected(server := made(page_size=1), MODERN) as peer:

        async def page(cursor: str | None = None) -> tuple[list[str], str | None]:
            result = (await peer.request("tools/list", {} if cursor is None else {"cursor": cursor}))["result"]
            return [tool["name"] for tool in result["tools"]], result.get("nextCursor")

        names, cursor = await page()
        assert names == ["first"]
        server.disable("admin")
        names, second = await page(cursor)
        assert names == ["second"]
        assert (await page(second))[0] == ["last"]
        server.disable("beta")
        assert (await page(second))[0] == ["last"]
        server.enable("beta", "admin")
        assert (await page(second))[0] == ["third"]
        assert (await page(cursor))[0] == ["second"]


async def test_item_with_two_tags_is_available_only_if_both_tags_are_enabled() -> None:
    server = made()
    async with open_memory(server) as client:
        server.disable("beta", "admin")
        server.enable("beta")
        assert await named(client.list_tools()) == ["first", "second", "last"]
        server.enable("admin")
        assert await named(client.list_tools()) == ["first", "second", "third", "last"]


async def test_item_registered_with_a_disabled_tag_is_disabled() -> None:
    server = made()
    server.disable("beta")

    @server.tool(tags=["beta"])
    async def late() -> str:
        return "late"

    async with open_memory(server) as client:
        assert (await refused(client.call_tool("late"))).code == -32602
        server.enable("beta")
        assert (await client.call_tool("late")).text == "late"


async def test_disabled_item_keeps_its_name_reserved_and_can_be_removed() -> None:
    server = made()
    server.disable("beta")
    with pytest.raises(ValueError, match=r"already a .* named 'second'"):
        server.tool(name="second")(lambda: "other")
    server.remove_tool("second")
    server.enable("beta")
    async with open_memory(server) as client:
        assert await named(client.list_tools()) == ["first", "third", "last"]


@pytest.mark.parametrize("era", ERAS)
async def test_disabling_a_tag_notifies_clients_only_of_changed_lists(era: Era) -> None:
    server, told = made(), list[str]()

    def hear(change: Any) -> None:
        told.append(str(change))

    async with open_memory(server, era=era, on_list_changed=hear):
        await wait_all_tasks_blocked()
        server.disable("admin")
        await wait_all_tasks_blocked()
        assert len(told) == 1
        assert "tools" in told[0]
        server.disable("beta")
        await wait_all_tasks_blocked()
        assert len(told) == 4
        server.disable("beta")
        server.enable("admin")  # its thing has another tag that is disabled
        await wait_all_tasks_blocked()
        assert len(told) == 4


async def test_list_capability_is_declared_even_if_all_items_are_disabled() -> None:
    server = Server("s")
    server.tool(name="only", tags=["beta"])(lambda: "only")
    server.disable("beta")
    assert server.capabilities.tools is not None


@pytest.mark.parametrize("era", ERAS)
async def test_running_calls_continue_after_their_tool_is_disabled(era: Era, autojump_clock: MockClock) -> None:
    server, results = Server("s"), list[str]()

    @server.tool(tags=["beta"])
    async def work(ctx: RequestContext) -> str:
        await trio.sleep(1)
        first = await ctx.elicit("Who?", NAME)
        await trio.sleep(1)
        return str(first.content)

    async def answer(_: object) -> ElicitResult:
        await trio.sleep(1)
        return ElicitResult("accept", {"name": "Ada"})

    async with open_memory(server, era=era, elicitation=answer) as client, trio.open_nursery() as nursery:

        async def call() -> None:
            results.append((await client.call_tool("work")).text)

        nursery.start_soon(call)
        await trio.sleep(0.5)
        server.disable("beta")
    assert json.loads(results[0].replace("'", '"')) == {"name": "Ada"}


async def test_tasks_of_a_disabled_tool_continue_and_can_be_read(autojump_clock: MockClock) -> None:
    server = Server("s", tasks=TaskSettings(grace=0))

    @server.tool(tags=["beta"], task="optional")
    async def work() -> str:
        await trio.sleep(10)
        return "done"

    async with knowing(server) as peer:
        task = await task_of(peer, "work")
        server.disable("beta")
        await trio.sleep(20)
        assert (await about(peer, "tasks/get", task))["status"] == "completed"


async def test_restarted_task_of_a_disabled_tool_runs_when_the_tool_is_enabled(autojump_clock: MockClock) -> None:
    store = MemoryTaskStore()

    def server_of() -> Server:
        server = Server("s", tasks=settings(store))

        @server.tool(tags=["beta"], task="required", on_restart="again")
        async def work(ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            await trio.sleep(10)
            return "done"

        return server

    async with calling(server_of()) as caller:
        task = await caller.start("work")
    server = server_of()
    server.disable("beta")
    async with calling(server) as caller:
        await trio.sleep(200)
        assert (await caller.get(task))["status"] == "working"
        server.enable("beta")
        assert (await caller.final(task))["status"] == "completed"


async def test_tags_disabled_on_a_mounted_server_apply_to_the_outer_server() -> None:
    part, whole = made(), Server("whole")
    whole.mount(part, prefix="part")
    async with open_memory(whole) as client, open_memory(part) as inner:
        part.disable("admin")
        assert await named(client.list_tools()) == ["part_first", "part_second", "part_last"]
        whole.disable("beta")
        assert await named(client.list_tools()) == ["part_first", "part_last"]
        assert await named(inner.list_tools()) == ["first", "second", "last"]
        part.enable("admin")
        assert await named(client.list_tools()) == ["part_first", "part_last"]
        part.remove_tool("second")  # disabled in the whole
        whole.enable("beta")
        assert await named(client.list_tools()) == ["part_first", "part_last", "part_third"]


async def test_disabled_tool_of_a_mounted_server_cannot_be_enabled_while_its_name_is_taken() -> None:
    part, whole = made(), Server("whole")
    whole.mount(part, prefix="part")
    part.disable("admin")
    whole.tool(name="part_third")(lambda: "other")
    with pytest.raises(ValueError, match="part_third"):
        part.enable("admin")
    whole.remove_tool("part_third")
    part.enable("admin")
    async with open_memory(whole) as client:
        assert (await client.call_tool("part_third")).text == "third"


async def test_disabled_tool_is_not_found_by_search_nor_callable_through_call_tool() -> None:
    server = made()
    server.searchable(pinned=["second"])
    async with open_memory(server) as client:
        assert "third" in (await client.call_tool("search_tools", {"query": "third"})).text
        server.disable("beta")
        assert await named(client.list_tools()) == ["search_tools", "call_tool"]
        assert "No tool fits" in (await client.call_tool("search_tools", {"query": "third second"})).text
        assert "no tool 'third'" in (await client.call_tool("call_tool", {"name": "third", "arguments": {}})).text
        server.enable("beta")
        assert await named(client.list_tools()) == ["search_tools", "call_tool", "second"]
        assert (await client.call_tool("call_tool", {"name": "third", "arguments": {}})).text == "third"


async def test_server_whose_only_item_with_scopes_is_disabled_still_counts_as_using_scopes() -> None:
    server = Server("s")
    server.resource("a://b", tags=["beta"], scopes=["read"])(lambda: "b")
    server.disable("beta")
    assert server._resources.has_scopes


def test_disabling_an_unknown_tag_raises_value_error() -> None:
    server = made()
    with pytest.raises(ValueError, match="no tool, resource or prompt has the tag 'betta'; known tags are admin, beta"):
        server.disable("betta")
    with pytest.raises(ValueError, match="no tag was given"):
        server.enable()
    with pytest.raises(ValueError, match=r"given by tags=\[...\]"):
        Server("empty").disable("beta")


@pytest.mark.parametrize("tags", ["beta", [5]])
def test_tags_that_are_not_a_collection_of_strings_raise_type_error(tags: Any) -> None:
    with pytest.raises(TypeError, match="tags must be a list of strings"):
        Server("s").tool(name="x", tags=tags)(lambda: "x")
