"""Servers of people's real software and one of ours, as members of one group: child processes, or over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
import trio
from tests.patience import LONG, PATIENCE
from tests.peers.http_servers import HttpServers
from tests.peers.journals import Journal
from trio.testing import MockClock

from trio_mcp import Command, ConnectionLost, PeerError, gateway, open_memory
from trio_mcp.hosting import MemberDescription, RestartPolicy, open_group
from trio_mcp.types import ALL_QUESTIONS, ElicitFormParams, ElicitResult

SERVERS = Path(__file__).parent / "servers"
NAMES = ("official", "fastmcp", "trio_mcp")
MembersOfEra: TypeAlias = Callable[[str], dict[str, MemberDescription]]


def command(name: str) -> list[str]:
    return [sys.executable, str(SERVERS / f"{name}_server.py")]


def members(tmp_path: Path, era: str) -> dict[str, MemberDescription]:
    return {
        name: MemberDescription(
            Command(command(name), env=Journal(tmp_path / name).env),
            restart=RestartPolicy(first_delay=0.01, jitter=0),
            options={"era": "legacy" if era == "legacy" else "auto"},
        )
        for name in NAMES
    }


@pytest.fixture(params=["stdio", "http"])
def of_era(request: pytest.FixtureRequest, tmp_path: Path, over_http: HttpServers) -> MembersOfEra:
    """The members, by the era in which they are spoken to."""

    def over_http_of(era: str) -> dict[str, MemberDescription]:
        spoken: Literal["legacy", "auto"] = "legacy" if era == "legacy" else "auto"
        urls = {name: over_http.get(name, command(name)).url for name in NAMES}
        return {name: MemberDescription(url, options={"era": spoken}) for name, url in urls.items()}

    return over_http_of if request.param == "http" else partial(members, tmp_path)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_group_calls_tools_and_reads_resources_of_all_its_servers_concurrently(
    of_era: MembersOfEra, era: str
) -> None:
    texts: dict[str, str] = {}
    with trio.fail_after(PATIENCE):
        async with open_group(of_era(era)) as group:
            await group.settled()
            assert {status.state for status in group.statuses.values()} == {"ready"}
            for name in NAMES:
                assert (await group.client(name)).revision.handshake == (era == "legacy")
                assert f"{name}__greet" in group.catalogue.prompts
                await (await group.client(name)).ping()

            async def call(name: str) -> None:
                texts[name] = (await group.call_tool(f"{name}__echo", {"text": name})).text

            async with trio.open_nursery() as nursery:
                for name in NAMES:
                    nursery.start_soon(call, name)
            assert texts == {name: name for name in NAMES}
            for name in NAMES:
                read = await group.read_resource(f"member://{name}/note://motto")
                assert read.contents[0].text == "never late, never lost"  # type: ignore[union-attr]


async def test_group_restarts_a_lost_server_while_other_servers_keep_working(tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE):
        async with open_group(members(tmp_path, "legacy")) as group:
            await group.settled()
            client = await group.client("official")
            async with trio.open_nursery() as nursery:
                hung = trio.Event()

                async def hang() -> None:
                    with pytest.raises(ConnectionLost):
                        await group.call_tool("official__hang", on_progress=lambda _: hung.set())

                nursery.start_soon(hang)
                await hung.wait()
                client._connection.lose(ConnectionLost("cut off"))
                assert (await group.call_tool("fastmcp__echo", {"text": "on"})).text == "on"
            assert (await group.call_tool("official__echo", {"text": "again"})).text == "again"
            assert await group.client("official") is not client


async def test_call_timeout_of_a_group_is_paused_during_elicitation(
    of_era: MembersOfEra, jump_clock: MockClock
) -> None:
    asked, all_are_asked = list[str](), trio.Event()

    async def think(question: ElicitFormParams) -> dict[str, str]:
        asked.append(question.message)
        if len(asked) == len(NAMES):
            jump_clock.jump(2 * LONG)
            all_are_asked.set()
        await all_are_asked.wait()
        return {"colour": "green"}

    async with open_group(of_era("legacy"), call_timeout=LONG, elicitation=think) as group:
        await group.settled()

        async def ask(name: str) -> None:
            assert (await group.call_tool(f"{name}__ask_user", {"message": "Which?"})).text == "accept green"

        with trio.fail_after(2 * LONG + PATIENCE):
            async with trio.open_nursery() as nursery:
                for name in NAMES:
                    nursery.start_soon(ask, name)


ASKING = {
    "official": """
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

class Name(BaseModel):
    value: str

server = MCPServer("asking")

@server.tool()
async def ask(ctx: Context) -> str:
    return (await ctx.elicit("Who?", Name)).data.value

server.run()
""",
    "fastmcp": """
from fastmcp import Context, FastMCP

server = FastMCP("asking")

@server.tool
async def ask(ctx: Context) -> str:
    return (await ctx.elicit("Who?", response_type=str)).data

server.run(show_banner=False)
""",
}


@pytest.mark.parametrize("name", ASKING)
async def test_gateway_negotiates_a_revision_in_which_the_server_can_elicit(name: str) -> None:
    described = {"m": MemberDescription([sys.executable, "-W", "ignore", "-c", ASKING[name]])}
    with trio.fail_after(PATIENCE):
        async with (
            open_group(described, forwards=ALL_QUESTIONS) as group,
            open_memory(
                gateway(group, patience=PATIENCE), elicitation=lambda _: ElicitResult("accept", {"value": "Ann"})
            ) as client,
        ):
            await group.settled()
            with suppress(PeerError):  # of mcp; fastmcp's is a result
                assert (await client.call_tool("m__ask")).is_error
            assert (await client.call_tool("m__ask")).text == "Ann"
