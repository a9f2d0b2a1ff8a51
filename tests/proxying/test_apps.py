"""Tools with views behind proxies and gateways: who is told of whom, and what stays as it is (SEP-1865)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from tests.proxying.conftest import ALL, Proxied
from tests.proxying.test_messages import LEGACY, MODERN, between
from trio.testing import MockClock

from trio_mcp import UI, AppPolicy, Apps, Client, RequestContext, Server, gateway, open_memory, proxy
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.testing import ScriptedServer
from trio_mcp.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
)

NAME, VIEW, BINARY = "io.modelcontextprotocol/ui", "ui://w/dash", "ui://w/binary"
PAGE = "<!DOCTYPE html>\r\n<p>\u00e9\u2028\U0001f600</p>\n"
META: dict[str, Any] = {"com.example/k": {"n": 1, "list": [None, 1.5]}}


def dashboard() -> Server:
    apps = Apps()
    server = Server("w", extensions=[apps])

    @server.tool(ui=UI(VIEW), meta=META, output_schema={"type": "object"})
    async def show(ctx: RequestContext) -> CallToolResult:
        declared = ctx.client_extension(apps)
        embedded = TextResourceContents(VIEW, PAGE, "text/html;charset=utf-8;profile=mcp-app", META)
        data = {"declared": declared is not None, "rows": [{"n": 2**53 - 1, "x": 0.1, "none": None}]}
        return CallToolResult([TextContent("shown", meta=META), EmbeddedResource(embedded)], data, meta=META)

    @server.tool(meta={"ui/resourceUri": VIEW, "ui": {"visibility": ["app"], "new": [1]}})
    async def old() -> str:
        return "old"

    @server.resource(VIEW, app=AppPolicy(connect=["https://api.example.com"]))
    async def page() -> ReadResourceResult:
        return ReadResourceResult([TextResourceContents(VIEW, PAGE, meta=META)], meta=META)

    @server.resource(BINARY, app=AppPolicy())
    async def binary() -> BlobResourceContents:
        return BlobResourceContents(BINARY, "PCFkb2N0eXBlIGh0bWw+/+7=", meta=META)

    return server


def of_one(meta: Any) -> Any:
    """``_meta`` without what each server says of itself."""
    return {name: value for name, value in (meta or {}).items() if not name.endswith("/serverInfo")}


async def seen_through(client: Client, prefix: str = "") -> list[Any]:
    """All that a host gets of views, without the names."""
    view, binary = (f"ui://{prefix and 'm/'}w/{name}" for name in ("dash", "binary"))
    tools = {tool.name.removeprefix(prefix): tool async for tool in client.list_tools()}
    called = await client.call_tool(f"{prefix}show")
    results = [await client.read_resource(uri) for uri in (view, binary)]
    assert [each.uri for result in results for each in result.contents] == [view, binary]
    assert called.content[1].resource.uri == view  # type: ignore[union-attr]
    return [
        UI.of(tools["show"]).view == view,
        UI.of(tools["old"]) == UI(view, visible_to=("app",)),
        of_one({**(tools["show"].meta or {}), "ui": None}),
        (tools["old"].meta or {})["ui"]["new"],
        [listed.mime_type async for listed in client.list_resources()],
        called.structured_content,
        of_one(called.meta),
        [attrs.evolve(called.content[1].resource, uri=""), called.content[0]],  # type: ignore[union-attr]
        [(attrs.evolve(each, uri=""), of_one(result.meta)) for result in results for each in result.contents],
    ]


async def test_proxy_preserves_tools_and_resources_of_mcp_apps(proxied: Proxied, front: Any, back: Any) -> None:
    async with open_memory(dashboard(), era=back, tasks=False) as client:
        direct = await seen_through(client)
    assert direct[:2] == [True, True]
    async with proxied(dashboard()) as before, open_memory(before, era=front) as client:
        assert await seen_through(client) == direct


async def test_gateway_preserves_mcp_apps_and_prefixes_the_view_uris(front: Any, back: Any) -> None:
    async with open_memory(dashboard(), era=back) as client:
        direct = await seen_through(client)
    async with open_group({"m": MemberDescription(dashboard(), options={"era": back})}) as group:
        await group.settled()
        async with open_memory(gateway(group), era=front) as client:
            assert await seen_through(client, "m__") == direct


async def declared(client: Client) -> bool:
    data = (await client.call_tool(next(iter([tool.name async for tool in client.list_tools()])))).structured_content
    return data["declared"]


async def test_proxy_declares_the_apps_extension_to_the_server_only_if_the_client_declares_it(
    front: Any, back: Any
) -> None:
    async def between_them(**options: Any) -> bool:
        def opening(**given: Any) -> Any:
            if back == "modern":
                given.pop("revision", None)
            return open_memory(dashboard(), **{**given, "era": back})

        async with open_memory(proxy(opening), era=front, **options) as client:
            assert client.server_extension(Apps()) == {}
            return await declared(client)

    assert await between_them(extensions=[Apps()])
    assert not await between_them()


async def test_proxy_declares_the_apps_extension_only_in_requests_of_clients_that_declare_it(
    front: Any,
) -> None:
    async with open_memory(dashboard(), forwards=ALL) as behind:
        shared = proxy(behind)
        async with (
            open_memory(shared, era=front, extensions=[Apps()]) as host,
            open_memory(shared, era=front) as other,
        ):
            assert [await declared(client) for client in (host, other, host)] == [True, False, True]


async def test_gateway_supports_the_apps_extension_if_one_of_its_servers_supports_the_extension(front: Any) -> None:
    async with open_group({"m": MemberDescription(dashboard())}, forwards=ALL) as group:
        await group.settled()
        async with open_memory(gateway(group), era=front, extensions=[Apps()]) as client:
            assert client.server_extension(Apps()) == {}
            assert await declared(client)
        async with open_memory(gateway(group), era=front) as client:
            assert not await declared(client)
    async with open_group({"m": MemberDescription(Server("plain"))}) as group:
        await group.settled()
        async with open_memory(gateway(group), era=front) as client:
            assert client.server_extension(Apps()) is None


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize(
    ("method", "extensions"),
    [("ui/open-link", {NAME: {}, "com.example/search": {}}), ("com.example/search/query", {NAME: {}})],
)
async def test_proxy_answers_requests_with_app_view_methods_with_method_not_found(
    autojump_clock: MockClock, revision: str, method: str, extensions: dict[str, Any]
) -> None:
    """Not even where the server has another extension; and that of apps alone has no methods."""

    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, {"tools": {}, "extensions": extensions})
        await server.answer(await server.expect_request("tools/list"), {"tools": []})

    async with between(behind, revision, {"extensions": extensions}) as client:
        await client.expect_error(await client.request(method), -32601)
        await client.expect_result(await client.request("tools/list"))
