"""Listings are written once: what is kept is what would be written anew, and nothing else is kept."""

from __future__ import annotations

import copy
import gc
import json
import weakref
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
from tests.instructions import instructions_of
from tests.interaction.memory_peer import MODERN, REVISIONS, MemoryPeer, connected

from trio_mcp import Server, ServerRequest
from trio_mcp.jsonrpc.codec import encode_value
from trio_mcp.protocol import listings
from trio_mcp.protocol.converters import unstructure
from trio_mcp.protocol.revisions import REVISIONS as ROWS
from trio_mcp.protocol.types.offers import ListPromptsResult, ListResourcesResult, ListResourceTemplatesResult
from trio_mcp.protocol.types.tools import ListToolsResult
from trio_mcp.runtime.peer import UNKNOWN_PEER, Auth, Peer, Principal
from trio_mcp.server.offers.registration import Registry
from trio_mcp.types import Icon, ToolAnnotations

ANN = Peer(auth=Auth("", Principal(client_id="ann")))


def offering(page_size: int | None = None) -> Server:
    server = Server("s", page_size=page_size)
    for number in range(5):
        tags = ["odd"] if number % 2 else []
        is_ann = (lambda auth: auth is not None and auth.client_id == "ann") if number == 3 else None

        async def handler(size: int | None = None) -> dict[str, int]:
            return {}

        icons, meta = [Icon("https://a.test/i.png")], {"a.test/n": number}
        common: dict[str, Any] = {"tags": tags, "visible": is_ann, "icons": icons, "meta": meta, "title": f"{number}"}
        common["description"] = "Do \ud800 nothing."
        server.tool(name=f"t{number}", annotations=ToolAnnotations(read_only_hint=True), **common)(handler)
        server.prompt(name=f"p{number}", **common)(handler)

        @server.resource(f"x://r{number}", size=number, **common)
        async def resource() -> str:
            return ""

        @server.resource(f"x://{number}/{{name}}", **common)
        async def template(name: str) -> str:
            return ""

    return server


def registries(server: Server) -> list[tuple[Registry[Any], Any]]:
    return [
        (server._tools.listed, ListToolsResult),
        (server._prompts.registry, ListPromptsResult),
        (server._resources.registry, ListResourcesResult),
        (server._resources.templates, ListResourceTemplatesResult),
    ]


def check(server: Server) -> None:
    """Compare the pages of all lists, in all revisions and for two callers, with pages written anew."""
    for registry, result in registries(server):
        for revision in ROWS.values():
            for peer in (UNKNOWN_PEER, ANN):
                cursor: str | None = None
                while True:
                    plain, _ = registry.page(cursor, peer)
                    page, following = registry.listing(cursor, peer)
                    assert [entry.listed for entry in plain] == page
                    anew = encode(unstructure(result([entry.listed for entry in plain], following), revision))
                    for _ in range(2):
                        assert encode(unstructure(result(page, following), revision)) == anew
                    if (cursor := following) is None:
                        break


def encode(value: Any) -> bytes:
    return listings.encode_readable(value)


async def noop() -> None: ...


@pytest.mark.parametrize("page_size", [None, 2])
def test_cached_list_pages_equal_uncached_pages_for_each_caller_and_revision(
    page_size: int | None,
) -> None:
    server = offering(page_size)
    check(server)
    for registry, _ in registries(server):
        shown = [sum(1 for _ in registry.listed_for(peer, 0)) for peer in (UNKNOWN_PEER, ANN)]
        assert shown == [4, 5]
    server.tool(name="new", description="first")(noop)
    check(server)
    server.remove_tool("new")
    server.remove_tool("t0")
    server.remove_prompt("p1")
    server.remove_resource("x://r2")
    server.remove_resource("x://2/{name}")
    check(server)
    server.tool(name="new", description="second", scopes=["a"])(noop)
    check(server)
    server.disable("odd")
    check(server)
    server.enable("odd")
    check(server)


async def lists(peer: MemoryPeer) -> AsyncIterator[Any]:
    for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
        yield (await peer.request(method))["result"]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_cached_list_after_changes_equals_the_list_of_a_new_server(revision: str) -> None:
    server = offering()
    async with connected(server, revision) as peer:
        first = [each async for each in lists(peer)]
        assert [each async for each in lists(peer)] == first
        server.disable("odd")
        fewer = [each async for each in lists(peer)]
        server.enable("odd")
        assert [each async for each in lists(peer)] == first
        server.remove_tool("t2")
        server.tool(name="t2", description="another")(noop)
        (tools, *others) = [each async for each in lists(peer)]
        assert tools["tools"][-1]["description"] == "another"
        assert others == first[1:]
    fresh = offering()
    async with connected(fresh, revision) as peer:
        assert [each async for each in lists(peer)] == first
    fresh = offering()
    fresh.disable("odd")
    async with connected(fresh, revision) as peer:
        assert [each async for each in lists(peer)] == fewer


async def test_list_items_changed_by_middleware_are_sent_without_changing_the_registered_items() -> None:
    server = offering()

    @server.middleware("tools/list")
    async def marked(request: ServerRequest, next: Any) -> Any:
        result: ListToolsResult = await next(request)
        result.tools[0] = attrs.evolve(result.tools[0], description="changed in place")
        del result.tools[1]
        assert copy.deepcopy(result) == result
        return result

    async with connected(server, MODERN) as peer:
        for _ in range(2):
            tools = (await peer.request("tools/list"))["result"]["tools"]
            assert [tool["name"] for tool in tools] == ["t0", "t2", "t4"]
            assert tools[0]["description"] == "changed in place"
    assert server._tools.registry.listing(None, UNKNOWN_PEER)[0][0].description != "changed in place"


async def test_list_items_that_middleware_changes_in_place_are_encoded_per_caller() -> None:
    server, callers = offering(), list[int]()

    @server.middleware("tools/list")
    async def numbered(request: ServerRequest, next: Any) -> Any:
        result: Any = await next(request)
        callers.append(len(callers))
        for tool in result.tools:
            tool.description = f"for caller {callers[-1]}"
        return result

    async with connected(server, MODERN) as peer:
        for number in range(3):
            tools = (await peer.request("tools/list"))["result"]["tools"]
            assert {tool["description"] for tool in tools} == {f"for caller {number}"}


def test_list_cache_drops_encoded_items_when_they_are_removed_and_stores_only_registered_items() -> None:
    server = offering()
    page, _ = server._tools.registry.listing(None, UNKNOWN_PEER)
    texts = page.texts
    page.append(attrs.evolve(page[0], name="foreign"))
    for revision in ROWS.values():
        unstructure(ListToolsResult(page), revision)
    assert [len(each) for each in texts._texts.values()] == [4] * len(ROWS)
    left, removed = texts._left, weakref.ref(page[0])
    del page
    server.remove_tool("t0")
    gc.collect()
    assert removed() is None
    assert [len(each) for each in texts._texts.values()] == [3] * len(ROWS)
    assert left < texts._left < listings._MOST_KEPT
    for name in ("t1", "t2", "t4"):
        server.remove_tool(name)
    assert texts._left == listings._MOST_KEPT


def test_list_items_beyond_the_size_limit_of_the_cache_are_encoded_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "_MOST_KEPT", 1000)
    server = offering()
    check(server)
    texts = server._tools.registry.listing(None, UNKNOWN_PEER)[0].texts
    kept = sum(len(text) for each in texts._texts.values() for _, text in each.values())
    assert 0 < kept == 1000 - texts._left <= 1000


def test_second_list_request_for_unchanged_items_executes_few_instructions() -> None:
    server = Server("s")
    for number in range(300):
        server.tool(name=f"t{number}")(noop)
    registry = server._tools.registry

    def listed() -> None:
        page, following = registry.listing(None, UNKNOWN_PEER)
        encode_value(unstructure(ListToolsResult(page, following), ROWS[MODERN]))

    first, second = instructions_of(listed), instructions_of(listed)
    assert second < 30 * 300 < 100 * 300 < first


async def test_lone_unicode_surrogates_in_a_listed_item_are_escaped() -> None:
    async with connected(offering(), MODERN) as peer:
        (tools, *_) = [each async for each in lists(peer)]
    assert json.dumps(tools["tools"][0]["description"]) == r'"Do \\ud800 nothing."'
