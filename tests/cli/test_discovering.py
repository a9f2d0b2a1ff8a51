"""``trio-mcp inspect https://host``: finds the server of a host by its catalog and server card."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.cli.commands import TRIO_MCP, run
from tests.cli.terminals import in_terminal
from tests.serving.http.raw import Endpoint, served

from trio_mcp import RouteRequest, Server

INSPECT = [*TRIO_MCP, "inspect"]
KIND = "application/mcp-server-card+json"
ALL = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]


def card(url: str, **members: Any) -> dict[str, Any]:
    remote = {"type": "streamable-http", "url": url, "supportedProtocolVersions": ALL}
    described = {"name": "com.example/weather", "version": "1.0", "description": "Weather \x1b[31mfor places"}
    return {**described, "remotes": [remote], **members}


@asynccontextmanager
async def host(
    *cards: str | dict[str, Any], catalog: Any = None, version: str = "1.0", name: str = "weather"
) -> AsyncGenerator[Endpoint]:
    """A server whose catalogue has ``cards``: the URL of one, or itself; HERE in them is this host."""

    async def listed(request: RouteRequest) -> Any:
        entries = [
            {"identifier": f"urn:air:\x1b[2Jexample.com:mcp:{number}", "type": KIND}
            | ({"url": each} if isinstance(each, str) else {"data": each})
            for number, each in enumerate(cards)
        ]
        written = json.dumps({"entries": entries} if catalog is None else catalog)
        return json.loads(written.replace("HERE", f"http://{request.headers['host']}"))

    async def shown(request: RouteRequest) -> Any:
        return json.loads(json.dumps(card("HERE/mcp")).replace("HERE", f"http://{request.headers['host']}"))

    routes = {"/.well-known/ai-catalog.json": listed, "/mcp/server-card": shown}
    async with served(Server(name, version), routes=routes) as endpoint:
        yield endpoint


def base(endpoint: Endpoint) -> str:
    return f"http://127.0.0.1:{endpoint.port}"


async def test_inspect_command_finds_a_server_through_catalog_and_server_card() -> None:
    async with host("HERE/mcp/server-card") as here:
        for url in (base(here), f"{base(here)}/"):
            ended = await run([*INSPECT, url])
            assert (ended.status, "server       weather 1.0" in ended.stdout) == (0, True)
            assert f"{base(here)}/mcp/server-card" in ended.stderr
            assert f"at {base(here)}/mcp\n" in ended.stderr
            assert "believe" not in ended.stderr
            assert "\x1b" not in ended.stderr
        ended = await run([*INSPECT, base(here), "--json", "--era", "legacy"])
        assert json.loads(ended.stdout)["server"]["name"] == "weather"


async def test_inspect_command_uses_a_server_card_embedded_in_the_catalog() -> None:
    async with host(card("HERE/mcp")) as here:
        ended = await run([*INSPECT, base(here)])
    assert (ended.status, "its card is in the catalog" in ended.stderr) == (0, True)


async def test_inspect_command_warns_if_the_server_card_differs_from_the_live_server() -> None:
    told = card("HERE/mcp", name="com.example/rain")
    told["remotes"][0]["supportedProtocolVersions"] = ["2025-11-25", "2099-01-01"]
    async with host(told, version="1.1") as here:
        ended = await run([*INSPECT, base(here)])
        legacy = await run([*INSPECT, base(here), "--era", "legacy"])
    assert ended.status == 0
    for line in (
        "the card says the name com.example/rain, but the live server says weather: trust the server",
        "the card says version 1.0, but the live server says 1.1: trust the server",
        "the card says revisions 2099-01-01, but the live server says 2026-07-28: trust the server",
    ):
        assert f"trio-mcp: {line}\n" in ended.stderr
    assert "revisions" not in legacy.stderr


@pytest.mark.parametrize("catalog", [{"entries": []}, [], {"entries": [{"type": "other"}]}])
async def test_inspect_command_connects_to_the_url_itself_if_there_is_no_usable_catalog(catalog: Any) -> None:
    async with host(catalog=catalog) as here:
        ended = await run([*INSPECT, base(here)])
    assert ended.status == 3 or ended.status == 4, "nothing is served at the root"
    assert "connecting to the URL itself" in ended.stderr


async def test_inspect_command_without_a_terminal_refuses_servers_on_another_host() -> None:
    async with host() as elsewhere:
        for found in (f"{base(elsewhere)}/mcp/server-card", card(f"{base(elsewhere)}/mcp")):
            async with host(found) as here:
                ended = await run([*INSPECT, base(here)])
            assert ended.status == 2
            assert f"on another host, at {base(elsewhere)}: to connect to it, use {base(elsewhere)}/mcp" in ended.stderr
            assert ended.stdout == ""


@pytest.mark.parametrize("url", ["http://example.com/mcp", "https://user:word@example.com/mcp", "\x1b[2J", ""])
async def test_inspect_command_refuses_server_cards_with_unsafe_urls(url: str) -> None:
    async with host(card(url)) as here:
        ended = await run([*INSPECT, base(here)])
    assert (ended.status, ended.stdout, "\x1b" in ended.stderr) == (2, "", False)


async def test_inspect_command_reports_a_server_card_without_a_url() -> None:
    async with host(card("HERE/mcp", remotes=[])) as here:
        ended = await run([*INSPECT, base(here)])
    assert (ended.status, "has no Streamable HTTP URL" in ended.stderr) == (2, True)


async def test_inspect_command_prompts_before_connecting_to_another_host() -> None:
    async with host() as elsewhere, host(card(f"{base(elsewhere)}/mcp")) as here:
        for answer, status in (("y", 0), ("n", 2), ("", 2)):
            async with in_terminal([*INSPECT, base(here)]) as terminal:
                await terminal.read_until(f"connect to {base(elsewhere)}? yes or no [no]: ")
                terminal.type(f"{answer}\n")
                assert await terminal.read_to_end() == status
            assert ("weather 1.0" in terminal.shown.rpartition("[no]")[2]) == (status == 0)


async def test_inspect_command_prompts_to_choose_among_several_servers() -> None:
    async with host(card("HERE/nothing"), "HERE/mcp/server-card") as here:
        ended = await run([*INSPECT, base(here)])
        assert (ended.status, "the catalog lists 2 servers" in ended.stderr) == (2, True)
        for answer, status in (("2", 0), ("3", 2), ("\x04", 2)):
            async with in_terminal([*INSPECT, base(here)]) as terminal:
                await terminal.read_until("which one? 1 to 2: ")
                terminal.type(answer if answer == "\x04" else f"{answer}\n")
                assert await terminal.read_to_end() == status


async def test_inspect_command_does_not_send_user_headers_to_another_host() -> None:
    async with host() as elsewhere, host(card(f"{base(elsewhere)}/mcp")) as here:
        async with in_terminal([*INSPECT, base(here), "--header", "X-Secret: word"]) as terminal:
            await terminal.read_until("yes or no [no]: ")
            terminal.type("yes\n")
            assert await terminal.read_to_end() == 2
        assert "your headers and your token may be sent only to" in " ".join(terminal.shown.split())
