"""A server that is mounted in another one is offered there, under names with a prefix, and stays itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import PeerError, Provide, RequestContext, Server, open_memory
from trio_mcp.types import CallToolResult, PromptReference, ResourceTemplateReference, TextContent

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def text(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def anything() -> None:
    """What a tool does matters nowhere here."""


def notes(name: str = "notes", steps: list[str] | None = None) -> Server:
    """A server with one thing of each kind, whose handlers tell their lifespan."""
    steps = [] if steps is None else steps

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[str]:
        steps.append(f"{name} begins")
        try:
            yield f"lifespan of {name}"
        finally:
            steps.append(f"{name} ends")

    server = Server(name, lifespan=lifespan)

    @server.tool
    async def where(ctx: RequestContext) -> str:
        return str(ctx.lifespan)

    @server.tool
    def in_a_thread(text: str) -> str:
        return text * 2

    @server.prompt
    async def greet(who: str, ctx: RequestContext) -> str:
        return f"{who} in the {ctx.lifespan}"

    @server.resource(f"{name}://motto")
    async def motto(ctx: RequestContext) -> str:
        return str(ctx.lifespan)

    @server.resource(f"{name}://by/{{author}}")
    async def by(author: str) -> str:
        return author

    @server.completion(prompt="greet", argument="who")
    async def people(value: str) -> list[str]:
        return [value + "a"]

    @server.completion(resource=f"{name}://by/{{author}}", argument="author")
    async def authors(value: str, ctx: RequestContext) -> list[str]:
        return [str(ctx.lifespan)]

    return server


@ERAS
async def test_tools_resources_and_prompts_of_a_mounted_server_run_with_the_lifespan_of_that_server(era: str) -> None:
    server, steps = Server("whole", lifespan=_whole), list[str]()
    server.mount(notes(steps=steps), prefix="n")

    async with open_memory(server, era=era) as client:
        assert [tool.name async for tool in client.list_tools()] == ["n_where", "n_in_a_thread"]
        assert text(await client.call_tool("n_where")) == "lifespan of notes"
        assert text(await client.call_tool("n_in_a_thread", {"text": "ab"})) == "abab"
        assert [prompt.name async for prompt in client.list_prompts()] == ["n_greet"]
        prompt = await client.get_prompt("n_greet", {"who": "Ann"})
        assert prompt.messages[0].content == TextContent("Ann in the lifespan of notes")
        assert [each.uri async for each in client.list_resources()] == ["notes://motto"]
        read = await client.read_resource("notes://motto")
        assert (read.contents[0].uri, read.contents[0].text) == ("notes://motto", "lifespan of notes")
        assert [each.uri_template async for each in client.list_resource_templates()] == ["notes://by/{author}"]
        assert (await client.read_resource("notes://by/Bob")).contents[0].text == "Bob"
        completed = await client.complete(PromptReference("n_greet"), "who", "Ann")
        assert completed.values == ["Anna"]
        completed = await client.complete(ResourceTemplateReference("notes://by/{author}"), "author", "")
        assert completed.values == ["lifespan of notes"]
        assert (await client.call_tool("n_where", {"no": 1})).is_error
        with pytest.raises(PeerError, match="Unknown tool"):
            await client.call_tool("where")
        assert steps == ["notes begins"]
    assert steps == ["notes begins", "notes ends"]


@asynccontextmanager
async def _whole(server: Server) -> AsyncIterator[str]:
    yield "the whole"


async def test_tool_of_a_server_mounted_inside_a_mounted_server_has_both_prefixes() -> None:
    steps = list[str]()
    outer, middle = Server("outer"), notes("middle", steps)
    outer.mount(middle, prefix="m")
    middle.mount(notes("inner", steps), prefix="i")  # after the other mount: what comes later is there, too
    async with open_memory(outer) as client:
        assert text(await client.call_tool("m_where")) == "lifespan of middle"
        assert text(await client.call_tool("m_i_where")) == "lifespan of inner"
        assert (await client.complete(PromptReference("m_i_greet"), "who", "El")).values == ["Ela"]
        assert (await client.read_resource("inner://motto")).contents[0].text == "lifespan of inner"
    assert steps == ["middle begins", "inner begins", "inner ends", "middle ends"]


async def test_server_enters_the_lifespan_of_each_mounted_server_in_each_run() -> None:
    count = 0

    @asynccontextmanager
    async def counted(_: Server) -> AsyncIterator[int]:
        nonlocal count
        count += 1
        yield count

    part, server = Server("part", lifespan=counted), Server("whole")

    @part.tool
    async def number(ctx: RequestContext) -> str:
        return str(ctx.lifespan)

    server.mount(part, prefix="p")
    async with open_memory(server) as one, open_memory(server) as two, open_memory(part) as alone:
        assert text(await two.call_tool("p_number")) == "2"
        assert text(await one.call_tool("p_number")) == "1"
        assert text(await alone.call_tool("number")) == "3"


async def test_server_mounted_twice_enters_its_lifespan_once() -> None:
    steps, server = list[str](), Server("whole")
    part = Server("part", lifespan=notes(steps=steps)._lifespan)  # pyright: ignore[reportPrivateUsage]

    @part.tool
    async def where(ctx: RequestContext) -> str:
        return str(ctx.lifespan)

    server.mount(part, prefix="a")
    server.mount(part, prefix="b")
    async with open_memory(server) as client:
        assert text(await client.call_tool("a_where")) == text(await client.call_tool("b_where"))
        assert steps == ["notes begins"]


@ERAS
async def test_changes_of_a_mounted_server_apply_to_all_mounts_and_notify_clients(era: str) -> None:
    part, server, told = notes(), Server("whole"), list[str]()
    server.mount(part, prefix="n")
    async with open_memory(server, era=era, on_list_changed=told.append, on_resource_updated=told.append) as client:
        await client.subscribe("notes://motto")

        @part.tool
        async def later() -> str:
            return "it came"

        await wait_all_tasks_blocked()
        assert told == ["tools"]
        assert text(await client.call_tool("n_later")) == "it came"
        part.remove_tool("later")
        part.remove_prompt("greet")
        part.resource_updated("notes://motto")
        await wait_all_tasks_blocked()
        assert told == ["tools", "tools", "prompts", "notes://motto"]
        assert [tool.name async for tool in client.list_tools()] == ["n_where", "n_in_a_thread"]


def test_mounting_a_server_whose_names_clash_raises_and_mounts_nothing() -> None:
    server, part = Server("whole"), notes()
    server.tool(name="n_in_a_thread")(anything)
    with pytest.raises(ValueError, match=r"already a .* named 'n_in_a_thread'"):
        server.mount(part, prefix="n")
    server.mount(part, prefix="m")
    with pytest.raises(ValueError, match=r"already a .* named 'notes://motto'"):
        server.mount(notes(), prefix="other")
    assert server._tools.registry.names() == {"n_in_a_thread", "m_where", "m_in_a_thread"}


def test_tool_added_to_a_mounted_server_is_added_nowhere_if_its_name_clashes() -> None:
    server, part = Server("whole"), notes()
    server.mount(part, prefix="n")
    server.tool(name="n_len")(anything)
    with pytest.raises(ValueError, match=r"already a .* named 'n_len'"):
        part.tool(name="len")(anything)
    assert "len" not in part._tools.registry.names()
    with pytest.raises(ValueError, match="is not a valid tool name"):
        part.tool(name="x" * 127)(anything)
    assert len(part._tools.registry) == 2


def test_tool_that_replaced_a_mounted_tool_stays_after_the_mounted_server_changes() -> None:
    server, part = Server("whole"), notes()
    server.mount(part, prefix="n")
    server.remove_tool("n_where")
    server.tool(name="n_where")(anything)
    part.remove_tool("where")
    assert server._tools.registry.get("n_where") is not None


def test_mount_raises_for_a_prefix_that_is_invalid_in_tool_names_and_accepts_an_empty_prefix() -> None:
    with pytest.raises(ValueError, match="is not a valid tool name"):
        Server("whole").mount(notes(), prefix="my notes")
    server = Server("whole")
    server.mount(notes(), prefix="")
    assert server._tools.registry.names() == {"where", "in_a_thread"}


def test_server_mounted_in_itself_directly_or_indirectly_raises() -> None:
    one, two = Server("one"), Server("two")
    with pytest.raises(ValueError, match="in itself"):
        one.mount(one, prefix="a")
    one.mount(two, prefix="a")
    with pytest.raises(ValueError, match="in itself"):
        two.mount(one, prefix="b")
    with pytest.raises(TypeError, match="takes a Server, not"):
        one.mount("two", prefix="c")  # pyright: ignore[reportArgumentType]


async def test_mounting_a_server_into_a_running_server_raises() -> None:
    server, part = Server("whole"), Server("part")
    server.mount(part, prefix="p")
    async with open_memory(server):
        for each in (server, part):
            with pytest.raises(RuntimeError, match="before serving"):
                each.mount(notes(), prefix="n")
    server.mount(notes(), prefix="n")


@ERAS
async def test_task_tool_of_a_mounted_server_runs_as_a_task_of_the_outer_server(
    era: str, autojump_clock: MockClock
) -> None:
    part, server, elsewhere = Server("part", lifespan=_whole), Server("outer"), list[str]()

    @part.tool(task="required")
    async def slow(ctx: RequestContext) -> str:
        await trio.sleep(5)
        return str(ctx.lifespan)

    @part.tool(task="required")
    async def external(ctx: RequestContext) -> object:
        state = await ctx.caller_tasks.create_task()
        elsewhere.append(state.id)
        return state

    server.mount(part, prefix="p")
    async with open_memory(server, era=era) as client:
        task = await client.start_task("p_slow")
        assert text(await task.result()) == "the whole"
        outside = await client.start_task("p_external")
        await part.tasks.store_task_result(elsewhere[0], "completed", "from outside")
        assert text(await outside.result()) == "from outside"


@ERAS
async def test_handler_of_a_mounted_server_can_elicit_and_be_cancelled(era: str) -> None:
    part, server, steps = Server("part"), Server("outer"), list[str]()

    @part.tool
    async def ask(ctx: RequestContext) -> str:
        answer = await ctx.elicit("how many?", {"type": "object", "properties": {"n": {"type": "integer"}}})
        return str(answer.content)

    @part.tool
    async def wait() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            steps.append(str(cancelled.reason))
            raise

    server.mount(part, prefix="p")

    async def three(_: object) -> dict[str, int]:
        return {"n": 3}

    async with open_memory(server, era=era, elicitation=three) as client, trio.open_nursery() as nursery:
        assert text(await client.call_tool("p_ask")) == "{'n': 3}"
        nursery.start_soon(client.call_tool, "p_wait")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel(reason="enough")
    assert steps == ["enough"]


STEPS = list[str]()


@asynccontextmanager
async def connect() -> AsyncIterator[str]:
    STEPS.append("connected")
    yield "database"
    STEPS.append("closed")


async def test_server_wide_dependency_used_by_mounted_handlers_is_entered_once() -> None:
    part, server = Server("part"), Server("whole")

    @part.tool
    async def query(database: Annotated[str, Provide(connect, once=True)]) -> str:
        return database

    server.mount(part, prefix="p")
    async with open_memory(server) as client:
        assert text(await client.call_tool("p_query")) == "database"
        assert text(await client.call_tool("p_query")) == "database"
    assert STEPS == ["connected", "closed"]


async def test_tags_of_a_mounted_server_can_be_disabled_on_the_mounted_or_the_outer_server() -> None:
    part, server = Server("part"), Server("whole")
    part.tool(tags=["rare"])(anything)
    server.mount(part, prefix="p")
    for side in (part, server):
        async with open_memory(server) as client:
            side.disable("rare")
            assert [tool.name async for tool in client.list_tools()] == []
            side.enable("rare")
            assert [tool.name async for tool in client.list_tools()] == ["p_anything"]


async def test_visibility_rule_of_a_mounted_server_applies_to_callers_of_the_outer_server() -> None:
    part, server = Server("part"), Server("whole")
    part.tool(visible=lambda auth: auth is not None)(anything)
    server.mount(part, prefix="p")
    async with open_memory(server) as client:
        assert [tool.name async for tool in client.list_tools()] == []
        with pytest.raises(PeerError, match="Unknown tool"):
            await client.call_tool("p_anything")
