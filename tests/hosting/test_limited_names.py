"""Names in the catalogue that model providers accept: ``max_name_length``."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.hosting.members import describe
from tests.interaction.client.raw import RawPeer
from trio.testing import MockClock

from trio_mcp import Server, aio, blocking, gateway, open_memory
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.hosting.catalogue import catalogue_name

LONG = "a" * 100
MEMBERS = ["billing-cost-management-mcp-server", "billing-cost-management-mcp-client", "my files", "plain"]
TOOLS = ["search", LONG, LONG + "b", "list.all", "list/all", "übersetzen", "a:b", "_"]
PROMPTS = ["ask", "ask.all", LONG]


def member(name: str) -> MemberDescription:
    """A server with names that the specification doesn't allow, too. Each answer has the member and the own name."""

    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={}, prompts={})
        while True:
            message = await peer.read()
            text = f"{name} {message.get('params', {}).get('name')}"
            match message.get("method"):
                case "tools/list":
                    tools = [{"name": each, "inputSchema": {"type": "object"}} for each in TOOLS]
                    await peer.result(message, {"tools": tools})
                case "prompts/list":
                    await peer.result(message, {"prompts": [{"name": each} for each in PROMPTS]})
                case "tools/call":
                    await peer.text(message, text)
                case "prompts/get":
                    await peer.result(message, {"description": text, "messages": []})

    return describe(script)


async def names(order: list[str], limit: int | None = 64) -> tuple[set[str], set[str]]:
    async with open_group({name: member(name) for name in order}, max_name_length=limit) as group:
        await group.settled()
        return set(group.catalogue.tools), set(group.catalogue.prompts)


@pytest.mark.parametrize("limit", [32, 64])
async def test_group_tool_names_with_a_length_limit_are_unique_and_accepted_by_model_providers(limit: int) -> None:
    tools, prompts = await names(MEMBERS, limit)
    assert len(tools) == len(MEMBERS) * len(TOOLS)
    assert len(prompts) == len(MEMBERS) * len(PROMPTS)
    assert [name for name in tools | prompts if not re.fullmatch(rf"[a-zA-Z0-9_-]{{1,{limit}}}", name)] == []
    assert {"plain__search", "plain__ask"} <= tools | prompts
    assert (tools, prompts) == await names(MEMBERS[::-1], limit)
    assert any("." in name for name in (await names(MEMBERS, None))[0])


async def test_group_calls_a_tool_by_its_shortened_name_even_before_the_tool_is_listed() -> None:
    tools, prompts = await names(MEMBERS)
    async with open_group({}, max_name_length=64) as group:
        for name in MEMBERS:
            group.add(name, member(name))
        texts = {(await group.call_tool(name)).text for name in tools}
        assert texts == {f"{name} {tool}" for name in MEMBERS for tool in TOOLS}
        found = {(await group.get_prompt(name)).description for name in prompts}
        assert found == {f"{name} {prompt}" for name in MEMBERS for prompt in PROMPTS}
        assert (await group.call_from_app(MEMBERS[0], LONG)).text == f"{MEMBERS[0]} {LONG}"


async def test_gateway_lists_the_shortened_tool_names_of_its_group(autojump_clock: MockClock) -> None:
    async with open_group({name: member(name) for name in MEMBERS}, max_name_length=64) as group:
        await group.settled()
        async with open_memory(gateway(group)) as client:
            tools = [tool.name async for tool in client.list_tools()]
            assert tools == list(group.catalogue.tools)
            for name, entry in group.catalogue.tools.items():
                assert (await client.call_tool(name)).text == f"{entry.member} {entry.item.name}"
            assert [prompt.name async for prompt in client.list_prompts()] == list(group.catalogue.prompts)


def test_blocking_and_asyncio_groups_accept_max_name_length() -> None:
    server = Server("a")
    server.tool(name="list.all")(lambda: "all")
    expected = catalogue_name("a", "list.all", 64)

    with blocking.open_group({"a": MemberDescription(server)}, max_name_length=64) as group:
        assert group.call_tool(expected).text == "all"

    async def main() -> str:
        async with aio.open_group({"a": MemberDescription(server)}, max_name_length=64) as group:
            return (await group.call_tool(expected)).text

    assert asyncio.run(main()) == "all"
    with pytest.raises(ValueError, match="max_name_length must be from 32 to 128, not 20"):
        blocking.open_group(max_name_length=20).__enter__()
