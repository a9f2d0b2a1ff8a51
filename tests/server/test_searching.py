"""A server that is searchable lists two tools, which find and call all others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Next, RequestContext, Server, ServerRequest, open_memory
from trio_mcp.jsonrpc.errors import PeerError
from trio_mcp.server.offers.searching import ToolIndex, in_a_line, words_in
from trio_mcp.server.offers.tools import Tools
from trio_mcp.types import CallToolResult, Tool

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
FORM = {"type": "object", "properties": {"n": {"type": "integer"}}}


def many() -> Server:
    """A server with tools about three things."""
    server = Server("many")

    @server.tool
    async def git_log(repository: str, limit: int = 10) -> str:
        """Show the commits of a repository.

        The newest ones first.
        """
        return f"{limit} commits of {repository}"

    @server.tool
    async def git_diff(repository: str, kind: Literal["staged", "all"] = "all") -> str:
        """Show what has changed since the last commit."""
        return kind

    @server.tool
    async def sendMail(to: Annotated[str, "Address of the receiver"], ctx: RequestContext) -> str:
        """Write a letter."""
        answer = await ctx.elicit("how many?", FORM)
        return f"{answer.content} to {to}"

    @server.tool(task="required")
    async def slow() -> str:
        """Take a nap."""
        await trio.sleep(5)
        return "woke up"

    return server


async def listed(client: Any) -> list[str]:
    return [tool.name async for tool in client.list_tools()]


async def found(client: Any, query: str, **more: Any) -> list[str]:
    result: CallToolResult = await client.call_tool("search_tools", {"query": query, **more})
    return [line.partition("(")[0] for line in result.text.splitlines()]


@ERAS
async def test_server_with_tool_search_lists_only_the_two_search_tools_and_pinned_tools(era: str) -> None:
    server = many()
    server.searchable(pinned=["git_log", "later"])

    async def three(_: object) -> dict[str, int]:
        return {"n": 3}

    async with open_memory(server, era=era, elicitation=three) as client:
        assert await listed(client) == ["search_tools", "call_tool", "git_log"]
        assert await found(client, "commit history of a repository") == ["git_log", "git_diff"]
        assert await found(client, "mails") == ["sendMail"]
        assert await found(client, "receiver's address") == ["sendMail"]
        assert await found(client, "SHOW", limit=1) == ["git_log"]
        result = await client.call_tool("call_tool", {"name": "git_log", "arguments": {"repository": "x"}})
        assert result.text == "10 commits of x"
        result = await client.call_tool("call_tool", {"name": "sendMail", "arguments": {"to": "Ann"}})
        assert result.text == "{'n': 3} to Ann"
        assert (await client.call_tool("git_diff", {"repository": "x"})).text == "all"

        @server.tool
        async def later() -> str:
            """Bake a cake."""
            return "cake"

        assert await listed(client) == ["search_tools", "call_tool", "git_log", "later"]
        assert await found(client, "cake") == ["later"]
        server.remove_tool("later")
        assert await found(client, "cake") == ["No tool fits. Try other words; there are 4 tools."]
        assert await listed(client) == ["search_tools", "call_tool", "git_log"]


@ERAS
async def test_call_tool_of_tool_search_returns_an_error_result_for_a_tool_that_cannot_be_called(era: str) -> None:
    server = many()
    server.searchable()
    async with open_memory(server, era=era) as client:
        for arguments, words in (
            ({"name": "git_lag"}, "there is no tool 'git_lag': find one with search_tools"),
            ({"name": "call_tool"}, "there is no tool 'call_tool'"),
            ({"name": 3}, "Invalid arguments for call_tool"),
            ({"name": "git_log", "arguments": [1]}, "Invalid arguments for call_tool"),
            ({"name": "git_log", "arguments": {"limit": 1}}, "Invalid arguments for git_log"),
        ):
            result = await client.call_tool("call_tool", arguments)
            assert result.is_error
            assert words in result.text
        with pytest.raises(PeerError, match="Unknown tool: git_lag"):
            await client.call_tool("git_lag")
        assert (await client.call_tool("search_tools", {"query": "x", "limit": 21})).is_error


@ERAS
async def test_task_tool_called_through_call_tool_of_tool_search_runs_as_a_task(
    era: str, autojump_clock: MockClock
) -> None:
    server = many()
    server.searchable()
    async with open_memory(server, era=era) as client:
        task = await client.start_task("call_tool", {"name": "slow"})
        assert task.id is not None
        assert (await task.result()).text == "woke up"


async def test_cancelled_call_through_call_tool_of_tool_search_cancels_the_called_tool() -> None:
    server, steps = Server("s"), list[str]()

    @server.tool
    async def wait() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            steps.append(str(cancelled.reason))
            raise

    server.searchable()
    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "call_tool", {"name": "wait"})
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel(reason="enough")
    assert steps == ["enough"]


def test_names_of_the_search_tools_cannot_be_registered() -> None:
    async def act() -> None: ...

    server = Server("s")
    server.tool(name="call_tool")(act)
    with pytest.raises(ValueError, match=r"already a .* named 'call_tool'"):
        server.searchable()
    server.remove_tool("call_tool")
    server.searchable()
    with pytest.raises(ValueError, match="uses the tool name 'search_tools'"):
        server.tool(name="search_tools")(act)
    with pytest.raises(TypeError, match="pinned must be a list of names"):
        server.searchable(pinned="act")


def test_tool_search_finds_words_within_names_and_singular_forms() -> None:
    assert list(words_in("getHTTPStatus of_files, class v2 ÄPFEL")) == [
        "get", "http", "statu", "file", "class", "v", "2", "äpfel",
    ]  # fmt: skip


def test_line_about_a_tool_in_a_tool_search_result_shows_the_signature_and_has_a_limited_length() -> None:
    schema = {
        "type": "object",
        "required": ["a"],
        "properties": {
            "a": {"type": "array", "items": {"type": "string"}},
            "b": {"enum": ["x", 2]},
            "c": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "d": {"type": "object", "properties": {"e": {"type": "boolean"}}},
            "f": {"type": ["string", "null"]},
            "g": True,
            "h": {"type": 3},
        },
    }
    assert in_a_line(Tool("t", schema, description="Do it.\nNow.")) == (
        't(a: [string], b?: "x"|2, c?: integer|null, d?: {e: boolean}, f?: string|null, g?: any, h?: any) - Do it.'
    )
    wide = {"type": "object", "properties": {f"parameter{number}": {"type": "string"} for number in range(1000)}}
    assert len(in_a_line(Tool("t", wide, description="word " * 1000))) < 600
    odd: Any = {"type": "object", "properties": 3, "required": "a"}
    assert in_a_line(Tool("t", odd)) == "t() - "


async def test_tool_search_index_ranks_hundreds_of_tools_and_forgets_removed_tools() -> None:
    tools, index = Tools(None), ToolIndex()

    async def act(text: str) -> None:
        """Do something with a text, whatever it is."""

    for number in range(300):
        tools.add(act, {"name": f"tool{number}", "description": f"number {number} of many"})
    tools.registry.mirror_in(index)
    assert index.ranked("number 42")[0] == "tool42"
    assert len(index.ranked("many " * 10_000)) == 300
    tools.registry.remove("tool42")
    assert "tool42" not in index.ranked("number 42")
    assert ToolIndex().ranked("anything") == []


@ERAS
async def test_middleware_gets_the_name_and_arguments_of_a_tool_called_through_tool_search(era: str) -> None:
    server, seen = many(), list[Any]()

    @server.middleware("tools/call")
    async def changed(request: ServerRequest, next: Next) -> Any:
        seen.append((request.offer, request.params.name, dict(request.arguments)))
        if request.offer == "git_log":
            request = request.with_arguments({**request.arguments, "limit": 3})
        return await next(request)

    server.searchable()
    async with open_memory(server, era=era) as client:
        arguments = {"name": "git_log", "arguments": {"repository": "x"}}
        assert (await client.call_tool("call_tool", arguments)).text == "3 commits of x"
        assert await found(client, "commits", limit=1) == ["git_log"]
    assert seen == [
        ("git_log", "git_log", {"repository": "x"}),
        (None, "search_tools", {"query": "commits", "limit": 1}),
    ]


@ERAS
async def test_tool_invisible_to_the_caller_is_neither_found_nor_callable(era: str) -> None:
    server = many()

    @server.tool(visible=lambda auth: auth is not None)
    async def hidden() -> str:
        """Bake a cake."""
        return "cake"

    server.searchable(pinned=["hidden"])
    async with open_memory(server, era=era) as client:
        assert await listed(client) == ["search_tools", "call_tool"]
        assert await found(client, "cake") == ["No tool fits. Try other words; there are 4 tools."]
        result = await client.call_tool("call_tool", {"name": "hidden"})
        assert result.is_error
        assert "there is no tool 'hidden'" in result.text
