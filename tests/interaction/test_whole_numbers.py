"""3.0 is an integer to JSON Schema, so it is one to tools, forms and messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from trio.testing import MockClock

from trio_mcp import RequestContext, Server

from .memory_peer import LATEST_LEGACY, REVISIONS, connected


@dataclass
class Line:
    amounts: list[int]
    crew: int | None = None


@pytest.mark.parametrize("revision", REVISIONS)
async def test_argument_that_is_an_integral_float_is_passed_to_the_handler_as_int(
    autojump_clock: MockClock, revision: str
) -> None:
    server, seen = Server("s"), list[Any]()

    @server.tool
    async def add(count: int, line: Line) -> str:
        seen.append((count, line.amounts, line.crew))
        return repr(count)

    async with connected(server, revision) as peer:
        arguments = {"count": 3.0, "line": {"amounts": [1.0, 2], "crew": 4.0}}
        assert await peer.text("add", arguments) == "3"
        assert repr(seen) == "[(3, [1, 2], 4)]"
        for wrong in ({"count": 3.5}, {"count": True}, {"line": {"amounts": [0.5]}}):
            message = peer.call_message("add", {**arguments, **wrong})
            await peer.send(message)
            reply = await peer.reply(message["id"])
            assert "error" in reply or reply["result"]["isError"]


@dataclass
class Folder:
    files: int
    folders: list[Folder] = field(default_factory=list)


async def test_deeply_nested_arguments_are_converted_in_linear_time(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def deepest(folder: Folder) -> str:
        while folder.folders:
            (folder,) = folder.folders
        return repr(folder.files)

    folder: dict[str, Any] = {"files": 3.0}
    for _ in range(60):  # 2 to the power of 60 ways, were each list looked at twice
        folder = {"files": 1, "folders": [folder]}
    async with connected(server, LATEST_LEGACY) as peer:
        assert await peer.text("deepest", {"folder": folder}) == "3"


async def test_integral_float_in_an_elicitation_answer_is_accepted_as_int(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def book(ctx: RequestContext) -> str:
        form = (await ctx.elicit("how many?", Crew)).as_(Crew)
        return repr(form)

    async with connected(server, LATEST_LEGACY, {"elicitation": {}}) as peer:
        call = await peer.start("book")
        question = await peer.question("elicitation/create")
        assert question["params"]["requestedSchema"]["required"] == ["size"]
        await peer.answer(question, {"action": "accept", "content": {"size": 7.0}})
        assert (await peer.reply(call))["result"]["content"][0]["text"] == "Crew(size=7, pets=None)"


@dataclass
class Crew:
    size: int
    pets: int | None
