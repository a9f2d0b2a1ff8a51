"""SV-07: what a client caches over a real transport, counted in the server process."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import Client, ResponseCache, open_stdio

SERVER = """
    import trio
    from trio_mcp import CacheHints, Server, serve_stdio

    server = Server("counting", cache_by_method={"tools/list": CacheHints(3_600_000, "public")})
    reads = {}

    def count(kind):
        reads[kind] = reads.get(kind, 0) + 1
        return f"{kind} {reads[kind]}"

    @server.resource("kept://one", ttl_ms=3_600_000)
    async def kept() -> str:
        return count("kept")

    @server.resource("fresh://one")
    async def fresh() -> str:
        return count("fresh")

    @server.tool
    async def change() -> None:
        server.resource_updated("kept://one")

    @server.tool
    async def grow() -> None:
        server.tool(change, name="late")

    trio.run(serve_stdio, server)
"""


async def read(client: Client, uri: str, **options: Any) -> str:
    return (await client.read_resource(uri, **options)).contents[0].text  # type: ignore[union-attr]


async def names(client: Client) -> list[str]:
    return [tool.name async for tool in client.list_tools()]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    path = tmp_path / "server.py"
    path.write_text(textwrap.dedent(SERVER))
    return [sys.executable, str(path)]


async def test_client_caches_a_resource_until_the_resource_changes_or_the_caller_requests_a_refresh(
    command: list[str],
) -> None:
    send, told = trio.open_memory_channel[str](10)
    with trio.fail_after(PATIENCE):
        async with open_stdio(command, era="modern", on_resource_updated=send.send_nowait) as client:
            assert [await read(client, "kept://one") for _ in range(2)] == ["kept 1"] * 2
            assert [await read(client, "fresh://one") for _ in range(2)] == ["fresh 1", "fresh 2"]
            assert await read(client, "kept://one", refresh=True) == "kept 2"
            await client.subscribe("kept://one")
            await client.call_tool("change")
            assert [await read(client, "kept://one") for _ in range(2)] == ["kept 3"] * 2
            assert await told.receive() == "kept://one"


async def test_client_caches_the_tool_list_until_a_list_changed_notification_arrives(command: list[str]) -> None:
    with trio.fail_after(PATIENCE):
        async with open_stdio(command, era="modern") as client, client.listen(tools=True) as changes:
            assert await names(client) == ["change", "grow"]
            await client.call_tool("grow")
            assert (await anext(changes)).kind == "tools"
            assert await names(client) == ["change", "grow", "late"]


async def test_response_cache_shares_public_results_among_all_clients_and_private_results_per_principal(
    command: list[str],
) -> None:
    cache = ResponseCache()
    with trio.fail_after(PATIENCE):
        async with (
            open_stdio(command, era="modern", cache=cache.partition("counting", "ann")) as ann,
            open_stdio(command, era="modern", cache=cache.partition("counting", "ann")) as other,
            open_stdio(command, era="modern", cache=cache.partition("counting", "bob")) as bob,
        ):
            assert await read(ann, "kept://one", refresh=True) == "kept 1"
            assert await read(ann, "kept://one", refresh=True) == "kept 2"
            assert await read(other, "kept://one") == "kept 2", "private, and of the same principal"
            assert await read(bob, "kept://one") == "kept 1", "another process was asked"
            await ann.call_tool("grow")
            assert await names(other) == ["change", "grow"]
            assert await names(ann) == ["change", "grow"], "public, and kept for all"


async def test_client_does_not_cache_results_in_legacy_revisions(command: list[str]) -> None:
    with trio.fail_after(PATIENCE):
        async with open_stdio(command, era="legacy") as client:
            assert [await read(client, "kept://one") for _ in range(2)] == ["kept 1", "kept 2"]
