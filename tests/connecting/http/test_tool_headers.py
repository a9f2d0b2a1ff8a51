"""Arguments mirrored in headers (2026-07-28 Streamable HTTP, Custom Headers from Tool Parameters; SEP-2243)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.connecting.http.scripted import Answer, Got, error, modern, result, serving, text

from trio_mcp import PeerError, open_http
from trio_mcp.connecting.http.outgoing import ToolHeaders

REGION = {"region": {"type": "string", "x-mcp-header": "Region"}}
BAD = {"region": {"type": "number", "x-mcp-header": "Region"}}


def tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def listed(got: Got, *tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return result(got, resultType="complete", tools=list(tools), ttlMs=0, cacheScope="private", **more)


class Shop:
    """A server whose tools may change, and which insists on the headers of today's tools."""

    def __init__(self, *pages: list[dict[str, Any]], streams: bool = False) -> None:
        self.pages = list(pages)
        self.streams = streams
        self.insists = True

    async def __call__(self, got: Got, answer: Answer) -> None:
        if got.name == "tools/list":
            page = int(got.message["params"].get("cursor", 0))
            more = {"nextCursor": str(page + 1)} if page + 1 < len(self.pages) else {}
            said = listed(got, *self.pages[page], **more)
        elif (
            self.insists
            and got.message["params"]["arguments"].get("region") is not None
            and "mcp-param-region" not in got.headers
        ):
            await answer.json(error(got, -32020, "Mcp-Param-Region is missing"), 400)
            return
        else:
            said = text(got)
        if self.streams:
            await answer.open()
            await answer.event(said)
            await answer.end()
        else:
            await answer.json(said)


async def names_listed(client: Any) -> list[str]:
    return [each.name async for each in client.list_tools()]


@pytest.mark.parametrize("streams", [False, True])
async def test_client_copies_annotated_arguments_of_a_listed_tool_into_http_headers(streams: bool) -> None:
    shop = Shop([tool("look", REGION)], streams=streams)
    async with serving(modern(shop)) as server, open_http(server.url) as client:
        await names_listed(client)
        await client.call_tool("look", {"region": "eu"})
        await client.call_tool("look", {"region": " ü"})
        await client.call_tool("look", {})
        await client.call_tool("look", {"region": None})
    values = [got.headers.get("mcp-param-region") for got in server.named("tools/call")]
    assert values == ["eu", "=?base64?IMO8?=", None, None]


@pytest.mark.parametrize("streams", [False, True])
async def test_client_lists_tools_after_a_header_mismatch_error_for_an_unlisted_tool(streams: bool) -> None:
    shop = Shop([tool("other", {})], [tool("look", REGION)], streams=streams)
    async with serving(modern(shop)) as server, open_http(server.url) as client:
        assert (await client.call_tool("look", {"region": "eu"})).text == "done"
        assert (await client.call_tool("look", {"region": "us"})).text == "done"
    assert server.names == ["server/discover", "tools/call", "tools/list", "tools/list", "tools/call", "tools/call"]
    first, again = server.named("tools/call")[:2]
    assert first.body == again.body
    for got in server.named("tools/list"):
        assert got.headers["mcp-method"] == "tools/list"
        assert "progressToken" not in got.message["params"]["_meta"]


async def test_client_that_looks_up_a_tool_in_endless_pages_requests_each_page_once() -> None:
    async def then(got: Got, answer: Answer) -> None:
        if got.name == "tools/list":
            page = int(got.message["params"].get("cursor", 0))
            await answer.json(listed(got, tool("look", REGION), nextCursor=str(page + 1)))
        elif "mcp-param-region" in got.headers:
            await answer.json(text(got))
        else:
            await answer.json(error(got, -32020), 400)

    async with serving(modern(then)) as server, open_http(server.url) as client:
        assert (await client.call_tool("look", {"region": "eu"})).text == "done"
    assert server.names.count("tools/list") == 2


async def test_call_raises_the_header_mismatch_error_if_the_new_tool_list_requires_no_other_headers() -> None:
    shop = Shop([tool("look", {})])
    async with serving(modern(shop)) as server, open_http(server.url) as client:
        with pytest.raises(PeerError) as caught:
            await client.call_tool("look", {"region": "eu"})
    assert caught.value.code == -32020
    assert server.names == ["server/discover", "tools/call", "tools/list"]


async def test_call_that_gets_a_header_mismatch_error_again_after_listing_the_tools_raises_the_error() -> None:
    async def then(got: Got, answer: Answer) -> None:
        if got.name == "tools/list":
            await answer.json(listed(got, tool("look", REGION)))
        else:
            await answer.json(error(got, -32020), 400)

    async with serving(modern(then)) as server, open_http(server.url) as client:
        with pytest.raises(PeerError):
            await client.call_tool("look", {"region": "eu"})
    assert server.names == ["server/discover", "tools/call", "tools/list", "tools/call"]


@pytest.mark.parametrize("status", [500, 404])
async def test_call_raises_the_header_mismatch_error_if_the_tools_cannot_be_listed(status: int) -> None:
    async def then(got: Got, answer: Answer) -> None:
        if got.name == "tools/list":
            await answer.whole(status)
        else:
            await answer.json(error(got, -32020), 400)

    async with serving(modern(then)) as server, open_http(server.url) as client:
        with pytest.raises(PeerError) as caught:
            await client.call_tool("look", {"region": "eu"})
    assert caught.value.code == -32020


async def test_tools_with_invalid_header_annotations_are_omitted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop([tool("bad", BAD), tool("good", REGION)])
    async with serving(modern(shop)) as server, open_http(server.url) as client:
        assert await names_listed(client) == ["good"]
    assert "the tool 'bad' is left out" in caplog.text


async def test_tool_whose_header_annotations_were_removed_is_called_without_headers() -> None:
    shop = Shop([tool("look", REGION)])
    async with serving(modern(shop)) as server, open_http(server.url) as client:
        await names_listed(client)
        shop.pages = [[tool("look", {"region": {"type": "string"}})]]
        shop.insists = False
        await names_listed(client)
        await client.call_tool("look", {"region": "eu"})
    assert "mcp-param-region" not in server.named("tools/call")[0].headers


async def test_client_sends_no_header_for_an_argument_beyond_the_safe_integer_range() -> None:
    shop = Shop([tool("look", {"n": {"type": "integer", "x-mcp-header": "N"}, **REGION})])
    async with serving(modern(shop)) as server, open_http(server.url) as client:
        await names_listed(client)
        await client.call_tool("look", {"n": 2**60, "region": "eu"})
        await client.call_tool("look", {"n": 42, "region": "eu"})
    first, second = server.named("tools/call")
    assert "mcp-param-n" not in first.headers
    assert (first.headers["mcp-param-region"], second.headers["mcp-param-n"]) == ("eu", "42")


def test_client_can_forget_which_headers_the_listed_tools_require() -> None:
    tools = ToolHeaders()
    tools.learn([tool("look", REGION)])
    assert ("look" in tools, len(tools.of("look"))) == (True, 1)
    tools.forget()
    assert ("look" in tools, tools.of("look")) == (False, ())
