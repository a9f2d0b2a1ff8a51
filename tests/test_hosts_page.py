"""The examples of `docs/hosts.md` run as they stand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pages import Page
from tests.serving.http.raw import served
from trio.testing import MockClock

from trio_mcp import RouteRequest, Server

PAGE = Page("hosts.md")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    yield from PAGE.write(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", PAGE.blocks)
async def test_each_example_can_be_imported_and_its_main_runs(page: Page, name: str, autojump_clock: MockClock) -> None:
    module = page.load(name)
    if hasattr(module, "main"):
        await module.main()


def test_the_asyncio_host_orders_after_a_call_was_cancelled(page: Page) -> None:
    assert asyncio.run(page.load("asyncio_host").program()) == "accept: {'number': 3}"


def test_the_script_orders_as_well(page: Page) -> None:
    assert page.load("script").run() == "accept: {'number': 3}"


async def test_a_host_finds_a_server_by_its_domain(page: Page) -> None:
    async def catalog(request: RouteRequest) -> dict[str, Any]:
        remote = {"type": "streamable-http", "url": "https://example.com/mcp"}
        card = {"name": "com.example/weather", "version": "1", "description": "Weather", "remotes": [remote]}
        return {"entries": [{"identifier": "urn:x", "type": "application/mcp-server-card+json", "data": card}]}

    async with served(Server("weather"), routes={"/.well-known/ai-catalog.json": catalog}) as endpoint:
        found = await page.load("finding").find(f"http://127.0.0.1:{endpoint.port}")
    assert found == {"com.example/weather": "https://example.com/mcp"}


async def test_a_host_has_the_requests_of_an_extension_where_the_server_has_it(page: Page) -> None:
    module = page.load("extended")
    server = Server("library", extensions=[module.search])

    server.handles(module.query)(lambda params: module.Hits([f"{params.search_text}.md"]))
    for each, names in ((server, ["trio.md"]), (Server("plain"), [])):
        async with served(each) as endpoint:
            assert await module.names(f"http://127.0.0.1:{endpoint.port}/mcp", "trio") == names
