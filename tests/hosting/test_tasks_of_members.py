"""Tasks of the members of a group."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.hosting.members import QUICK
from trio.testing import MockClock

from trio_mcp import ConnectionLost, InMemory, RequestContext, Server, TaskSettings
from trio_mcp.hosting import MemberDescription, MemberUnavailable, NotInCatalogue, open_group
from trio_mcp.hosting.group import Group
from trio_mcp.jsonrpc.errors import PeerError
from trio_mcp.stores import MemoryTaskStore
from trio_mcp.stores.task_store import TaskStore
from trio_mcp.types import ElicitFormParams

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


@pytest.fixture(params=("legacy", "modern"))
def era(request: pytest.FixtureRequest) -> Any:
    return request.param


def roaster(store: TaskStore | None = None) -> Server:
    server = Server("roaster", tasks=TaskSettings(store=store))

    @server.tool(task="required")
    async def roast(minutes: float, ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        ctx.task.status("hot")
        await trio.sleep(60 * minutes)
        return f"roasted for {minutes:g}"

    @server.tool(task="required")
    async def ask(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        return str((await ctx.elicit("who?", FORM)).content)

    @server.tool
    async def pour() -> str:
        return "poured"

    return server


def member(era: str, server: Server | None = None, **more: Any) -> MemberDescription:
    return MemberDescription(InMemory(server or roaster()), options={"era": era}, **more)  # type: ignore[typeddict-item]


async def answer(_: ElicitFormParams) -> dict[str, Any]:
    return {"name": "ann"}


async def lose(group: Group, name: str) -> None:
    await (await group.client(name))._connection.close("the wire broke")


async def test_group_call_of_a_tool_that_runs_as_a_task_waits_for_its_result(
    autojump_clock: MockClock, era: str
) -> None:
    told: list[str | None] = []
    async with open_group({"a": member(era), "b": member(era)}, elicitation=answer) as group:
        result = await group.call_tool("b__roast", {"minutes": 5}, on_progress=lambda news: told.append(news.message))
        assert result.text == "roasted for 5"
    assert told == ["hot"]


async def test_handlers_of_the_group_answer_an_elicitation_from_a_task(autojump_clock: MockClock, era: str) -> None:
    async with open_group({"a": member(era)}, elicitation=answer) as group:
        assert (await group.call_tool("a__ask")).text == "{'name': 'ann'}"


async def test_task_started_through_a_group_continues_and_can_be_resumed_by_its_id(
    autojump_clock: MockClock, era: str
) -> None:
    async with open_group({"a b": member(era), "c": member(era)}) as group:
        await group.settled()
        (name,) = [name for name in group.catalogue.tools if name.startswith("a_b_roast")]
        task = await group.start_task(name, {"minutes": 5}, ttl=600)
        assert (task.member, task.id is not None and task.id.startswith("member://a%20b/")) == ("a b", True)
        assert task.id is not None
        again = group.resume_task(task.id)
        state = await again.get()
        assert (state.id, state.status) == (task.id, "working")
        assert [(await each.result()).text for each in (task, again)] == ["roasted for 5"] * 2


async def test_group_can_cancel_a_task_of_a_server(autojump_clock: MockClock, era: str) -> None:
    async with open_group({"a": member(era)}) as group:
        task = await group.start_task("a__roast", {"minutes": 5})
        await task.cancel()
        assert (await task.get()).status == "cancelled"


async def test_start_task_call_of_a_group_returns_the_result_if_the_tool_does_not_run_as_a_task(
    autojump_clock: MockClock, era: str
) -> None:
    async with open_group({"a": member(era)}) as group:
        task = await group.start_task("a__pour")
        await lose(group, "a")
        assert (task.id, (await task.result()).text) == (None, "poured")
        with pytest.raises(RuntimeError, match="there is no task"):
            await task.get()


async def test_wait_for_a_task_fails_if_its_server_is_lost_but_the_task_can_be_polled_again(
    autojump_clock: MockClock, era: str
) -> None:
    store = MemoryTaskStore()
    one = member(era, roaster(store), restart=QUICK)
    async with open_group({"a": one}) as group, trio.open_nursery() as nursery:
        task = await group.start_task("a__roast", {"minutes": 5})

        async def break_it() -> None:
            await trio.sleep(60)
            await lose(group, "a")

        nursery.start_soon(break_it)
        with pytest.raises(ConnectionLost):
            await task.result()
        # The server was stopped with its connection, and says so.
        with pytest.raises(PeerError) as caught:
            await task.result()
    assert caught.value.code == -31002


async def test_task_of_a_server_removed_from_its_group_raises_member_unavailable(
    autojump_clock: MockClock, era: str
) -> None:
    async with open_group({"a": member(era)}) as group:
        task = await group.start_task("a__roast", {"minutes": 5})
        await group.remove("a")
        for step in (task.get, task.result, task.cancel):
            with pytest.raises(MemberUnavailable, match="'a' is not a server of this group"):
                await step()


async def test_group_raises_not_in_catalogue_for_a_task_id_that_the_group_did_not_issue(
    autojump_clock: MockClock,
) -> None:
    async with open_group() as group:
        with pytest.raises(NotInCatalogue, match="member://SERVER/ID"):
            group.resume_task("t-1")
        with pytest.raises(MemberUnavailable):
            await group.resume_task("member://a/t-1").get()
