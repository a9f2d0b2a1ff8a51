"""Calls to the members of a group, and what else can be done with one."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest
import trio
from tests.hosting.members import describe, hangs, in_memory, serves
from tests.interaction.client.raw import RawPeer
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import RequestContext, Server
from trio_mcp.hosting import MemberDescription, MemberUnavailable, NotInCatalogue, open_group
from trio_mcp.types import LogParams


async def test_group_calls_a_tool_by_its_name_with_the_server_prefix(autojump_clock: MockClock) -> None:
    async with open_group({"a": in_memory("a"), "b": in_memory("b")}) as group:
        assert (await group.call_tool("a__greet")).text == "hello from a"
        assert (await group.call_tool("b__greet")).text == "hello from b"


async def test_server_stays_in_the_group_after_the_task_that_added_it_ends(autojump_clock: MockClock) -> None:
    async with open_group() as group, trio.open_nursery() as nursery:

        async def add() -> None:
            group.add("late", in_memory())

        nursery.start_soon(add)
        await wait_all_tasks_blocked()
        assert (await group.call_tool("late__greet")).text == "hello from greeter"


async def test_server_stays_in_the_group_after_the_scope_in_which_it_was_added_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    async with open_group() as group:
        with trio.move_on_after(1):
            group.add("late", in_memory())
            await trio.sleep_forever()
        await trio.sleep(3)
        assert (await group.call_tool("late__greet")).text == "hello from greeter"


async def test_server_of_a_group_does_not_inherit_context_variables_of_the_task_that_adds_it(
    autojump_clock: MockClock,
) -> None:
    who = ContextVar("who", default="nobody")
    seen: list[str] = []
    server = Server("s")

    @server.tool
    async def look(ctx: RequestContext) -> None:
        await ctx.log.error("look")

    def on_log(_: LogParams) -> None:
        seen.append(who.get())

    async with open_group() as group:
        who.set("somebody")
        group.add("s", MemberDescription(server, options={"on_log": on_log, "era": "legacy"}))
        await group.call_tool("s__look")
    assert seen == ["nobody"]


async def test_group_call_to_a_server_that_starts_waits_until_it_is_ready(autojump_clock: MockClock) -> None:
    async def slow(peer: RawPeer) -> None:
        await trio.sleep(30)
        await serves("echo")(peer)

    async with open_group({"slow": describe(slow)}) as group:
        assert (await group.call_tool("slow__echo")).text == "echo"
        assert trio.current_time() == pytest.approx(30)


async def test_group_raises_not_in_catalogue_for_an_unknown_tool_prompt_or_resource(autojump_clock: MockClock) -> None:
    async with open_group({"a": in_memory()}) as group:
        for name in ("a__shout", "b__greet", "greet", "", "a__"):
            with pytest.raises(NotInCatalogue):
                await group.call_tool(name)
        with pytest.raises(NotInCatalogue):
            await group.get_prompt("a__greet")
        with pytest.raises(NotInCatalogue, match="member://files/"):
            await group.read_resource("note://motto")


async def test_group_call_of_an_unknown_tool_does_not_wait_for_servers_that_are_still_starting(
    autojump_clock: MockClock,
) -> None:
    async with open_group({"slow": describe(hangs), "a": in_memory()}) as group:
        with trio.fail_after(1), pytest.raises(NotInCatalogue):
            await group.call_tool("a__shout")


async def test_group_gets_prompts_and_reads_resources_of_its_servers(autojump_clock: MockClock) -> None:
    server = Server("library")

    @server.prompt
    async def greet(name: str) -> str:
        return f"Greet {name}."

    @server.resource("note://motto")
    async def motto() -> str:
        return "never late"

    @server.resource("note://by/{author}")
    async def by(author: str) -> str:
        return f"by {author}"

    async with open_group({"my library": MemberDescription(server)}) as group:
        await group.settled()
        (prompt,) = group.catalogue.prompts
        assert (await group.get_prompt(prompt, {"name": "Ann"})).messages[0].content.text == "Greet Ann."  # type: ignore[union-attr]
        (uri,) = group.catalogue.resources
        assert uri == "member://my%20library/note://motto"
        assert (await group.read_resource(uri)).contents[0].text == "never late"  # type: ignore[union-attr]
        (template,) = group.catalogue.resource_templates
        read = await group.read_resource(template.replace("{author}", "ann"))
        assert read.contents[0].text == "by ann"  # type: ignore[union-attr]
        with pytest.raises(MemberUnavailable):
            await group.read_resource("member://nobody/note://motto")


async def test_group_call_forwards_progress_and_meta(autojump_clock: MockClock) -> None:
    server, seen, metas = Server("s"), list[float](), list[Any]()

    @server.tool
    async def work(ctx: RequestContext) -> None:
        metas.append(ctx.meta["example.com/who"])
        ctx.progress(1)

    async with open_group({"s": MemberDescription(server)}) as group:
        await group.call_tool("s__work", on_progress=lambda p: seen.append(p.progress), meta={"example.com/who": "me"})
    assert (seen, metas) == ([1], ["me"])


async def test_options_of_one_server_override_the_options_of_its_group(autojump_clock: MockClock) -> None:
    members = {"short": in_memory(), "long": in_memory(call_timeout=100)}
    async with open_group(members, call_timeout=5) as group:
        assert (await group.call_tool("long__sleep", {"seconds": 50})).text == "slept"
        with pytest.raises(trio.TooSlowError):
            await group.call_tool("short__sleep", {"seconds": 50})
