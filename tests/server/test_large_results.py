"""Large results: clients get the beginning and a link, which only the same caller can read, for a while."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from tests.serving.http.protection import bearer, issued, protected, session_of
from tests.serving.http.raw import BASE, Endpoint, message, modern
from tests.serving.http.scenes import in_memory
from tests.tasks.callers import LEASE, calling, settings
from tests.tasks.touchy_store import TouchyStore
from trio.testing import MockClock

from trio_mcp import (
    Client,
    Image,
    PeerError,
    RequestContext,
    Server,
    ToolError,
    gateway,
    keep_large_results,
    open_memory,
)
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.stores import TaskStore
from trio_mcp.types import (
    BlobResourceContents,
    CallToolResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
    UnknownContent,
)

MEGABYTE = 1024 * 1024


def printer(**options: Any) -> Server:
    server = Server("printer")

    @server.tool
    async def text(size: int) -> str:
        return "0123456789" * (size // 10)

    @server.tool
    async def rows(size: int) -> list[int]:
        return list(range(size))

    @server.tool
    async def picture() -> Image:
        return Image(bytes(9000), "image/png")

    @server.tool
    async def mixed() -> CallToolResult:
        said = {"type": "new", "text": "x" * 3000}
        return CallToolResult([TextContent("a" * 3000), UnknownContent(said)], {"b": 1}, meta={"c": "d"})

    @server.tool
    async def fail(size: int) -> str:
        raise ToolError("x" * size)

    keep_large_results(server, **{"max_bytes": 2000, "preview": 20, **options})
    return server


def link_in(result: CallToolResult) -> ResourceLink:
    (link,) = (each for each in result.content if isinstance(each, ResourceLink))
    return link


async def whole(client: Client, result: CallToolResult) -> list[Any]:
    return list((await client.read_resource(link_in(result).uri)).contents)


async def test_tool_result_below_the_size_limit_is_unchanged() -> None:
    async with open_memory(printer()) as client:
        result = await client.call_tool("rows", {"size": 3})
        assert (result.as_(list[int]), len(result.content)) == ([0, 1, 2], 1)


async def test_large_tool_result_is_truncated_and_the_rest_is_readable_through_a_resource_link() -> None:
    async with open_memory(printer()) as client:
        result = await client.call_tool("text", {"size": 5000})
        link = link_in(result)
        beginning, note = result.text.split("\n")
        assert beginning == "01234567890123456789"
        assert note == f"[{link.size:,} bytes. Read the full result at {link.uri} within 600 seconds.]"
        assert (result.structured_content, result.is_error) == (None, None)
        assert await whole(client, result) == [TextResourceContents(link.uri, "0123456789" * 500, "text/plain")]


async def test_structured_content_equal_to_the_text_of_a_large_result_is_stored_once() -> None:
    async with open_memory(printer()) as client:
        (contents,) = await whole(client, await client.call_tool("rows", {"size": 1000}))
        assert json.loads(contents.text) == list(range(1000))


async def test_large_result_keeps_images_unknown_blocks_and_embedded_data() -> None:
    async with open_memory(printer()) as client:
        result = await client.call_tool("picture")
        (picture,) = await whole(client, result)
        assert isinstance(picture, BlobResourceContents)
        assert (picture.mime_type, len(picture.blob)) == ("image/png", 12000)
        mixed = await client.call_tool("mixed")
        assert "c" not in (mixed.meta or {})
        text, unknown, data = await whole(client, mixed)
        assert (text.text, json.loads(unknown.text)["type"], json.loads(data.text)) == ("a" * 3000, "new", {"b": 1})


async def test_truncated_error_result_is_still_an_error() -> None:
    async with open_memory(printer()) as client:
        result = await client.call_tool("fail", {"size": 5000})
        assert result.is_error
        assert (await whole(client, result))[0].text == "x" * 5000


async def test_tool_does_not_list_an_output_schema_that_its_truncated_result_would_violate() -> None:
    plain = Server("plain")

    @plain.tool
    async def rows() -> list[int]:
        return list(range(1000))

    async with open_memory(plain) as client:
        assert [tool.output_schema is None async for tool in client.list_tools()] == [False]
    keep_large_results(plain, 100)
    async with open_memory(plain) as client:
        assert [tool.output_schema async for tool in client.list_tools()] == [None]
        assert (await client.call_tool("rows")).schema_error is None


async def test_stored_large_result_is_dropped_at_its_ttl_without_any_request(autojump_clock: MockClock) -> None:
    async with open_memory(printer(ttl=10.0)) as client:
        result = await client.call_tool("text", {"size": 5000})
        await trio.sleep(9)
        assert await whole(client, result)
        await trio.sleep(2)
        with pytest.raises(PeerError, match="Resource not found"):
            await whole(client, result)


async def test_stored_large_results_of_a_caller_use_at_most_half_of_the_storage() -> None:
    async with open_memory(printer(total_bytes=20_000)) as client:
        results = [await client.call_tool("text", {"size": 5000}) for _ in range(3)]
        with pytest.raises(PeerError, match="Resource not found"):
            await whole(client, results[0])
        assert [len((await whole(client, each))[0].text) for each in results[1:]] == [5000, 5000]
        huge = await client.call_tool("text", {"size": 12_000})
        assert huge.text.endswith("The rest was too large to store.]")
        assert len(huge.content) == 1
        assert await whole(client, results[2])


async def test_result_of_100_megabytes_is_truncated_without_being_stored() -> None:
    async with open_memory(printer()) as client:
        result = await client.call_tool("text", {"size": 100 * MEGABYTE})
        assert len(result.text) < 200
        assert "The rest was too large to store" in result.text


@pytest.mark.parametrize("uri", ["result://kept/x", "result://kept/" + "x" * 43, "result://kept/%00"])
async def test_unknown_large_result_link_gets_error_resource_not_found(uri: str) -> None:
    async with open_memory(printer()) as client:
        await client.call_tool("text", {"size": 5000})
        with pytest.raises(PeerError, match="Resource not found"):
            await client.read_resource(uri)


@pytest.mark.parametrize("wrong", [{"max_bytes": 0}, {"ttl": 0}, {"total_bytes": -1}])
def test_invalid_large_result_sizes_raise_value_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be greater than 0"):
        keep_large_results(Server("s"), **wrong)


def test_negative_preview_size_for_large_results_raises_value_error() -> None:
    with pytest.raises(ValueError, match="preview must be 0 or more, not -1"):
        keep_large_results(Server("s"), preview=-1)


# Callers


async def link_for(endpoint: Endpoint, headers: Mapping[str, str | None], *, is_modern: bool) -> str:
    call = {"name": "text", "arguments": {"size": 5000}}
    more, body = modern("tools/call", call) if is_modern else ({}, message("tools/call", call, 5))
    answer = await endpoint.ask("POST", {**headers, **more}, body)
    return answer.json["result"]["content"][1]["uri"]


async def can_read(endpoint: Endpoint, headers: Mapping[str, str | None], uri: str, *, is_modern: bool) -> bool:
    more, body = (
        modern("resources/read", {"uri": uri}) if is_modern else ({}, message("resources/read", {"uri": uri}, 6))
    )
    reply = (await endpoint.ask("POST", {**headers, **more}, body)).json
    assert "result" in reply or reply["error"]["message"] == "Resource not found"
    return "result" in reply


async def test_large_result_link_is_readable_only_by_its_principal() -> None:
    tokens = issued()
    async with in_memory(printer(), auth=protected(tokens)) as endpoint:
        uri = await link_for(endpoint, bearer("alice-1"), is_modern=True)
        assert await can_read(endpoint, bearer("alice-2"), uri, is_modern=True)
        assert await can_read(endpoint, await session_of(endpoint, "alice-1"), uri, is_modern=False)
        assert not await can_read(endpoint, bearer("bob-1"), uri, is_modern=True)
        assert not await can_read(endpoint, await session_of(endpoint, "bob-1"), uri, is_modern=False)


async def test_large_result_link_from_a_session_or_modern_call_is_unreadable_in_a_different_session() -> None:
    async with in_memory(printer()) as endpoint:
        one, two = await endpoint.initialize(), await endpoint.initialize()
        uri = await link_for(endpoint, one, is_modern=False)
        assert await can_read(endpoint, one, uri, is_modern=False)
        assert not await can_read(endpoint, two, uri, is_modern=False)
        assert not await can_read(endpoint, BASE, uri, is_modern=True)
        uri = await link_for(endpoint, BASE, is_modern=True)
        assert await can_read(endpoint, BASE, uri, is_modern=True)
        assert not await can_read(endpoint, one, uri, is_modern=False)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_large_result_link_is_readable_only_on_the_connection_that_received_the_result(era: Any) -> None:
    server = printer()
    async with open_memory(server, era=era) as one, open_memory(server, era=era) as two:
        result = await one.call_tool("text", {"size": 5000})
        assert await whole(one, result)
        with pytest.raises(PeerError, match="Resource not found"):
            await whole(two, result)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_large_result_link_of_a_task_is_readable_on_the_connection_of_the_call(era: Any) -> None:
    server = Server("printer")

    @server.tool(task="required")
    async def text(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        return "0123456789" * 500

    keep_large_results(server, 2000)
    async with open_memory(server, era=era) as client:
        result = await client.call_tool("text")
        assert (await whole(client, result))[0].text == "0123456789" * 500


async def test_task_that_runs_again_after_a_restart_truncates_a_large_result_without_a_link(
    autojump_clock: MockClock,
) -> None:
    store = TouchyStore()

    def server_of(store: TaskStore) -> Server:
        server = Server("printer", tasks=settings(store))

        @server.tool(task="required", on_restart="again")
        async def text(ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            await trio.sleep(LEASE if ctx.task.attempt == 1 else 0)
            return "0123456789" * 500

        keep_large_results(server, 2000, preview=20)
        return server

    async with trio.open_nursery() as nursery, calling(server_of(store)) as caller:
        task_id = await caller.start("text")
        store.die()
        nursery.cancel_scope.cancel()
    async with calling(server_of(store.store)) as caller:
        result = (await caller.final(task_id))["result"]
    assert [each["type"] for each in result["content"]] == ["text"]
    assert "The rest was not stored, because the server was restarted" in result["content"][0]["text"]


async def test_gateway_truncates_large_results_of_the_servers_behind_it() -> None:
    member = Server("member")

    @member.tool
    async def rows() -> list[int]:
        return list(range(1000))

    async with open_group({"a": MemberDescription(member)}) as group:
        await group.settled()
        server = gateway(group)
        keep_large_results(server, 1000, preview=10)
        async with open_memory(server) as client:
            assert [tool.output_schema async for tool in client.list_tools()] == [None]
            result = await client.call_tool("a__rows")
            assert result.text.startswith("[0,1,2,3,4\n[")
            assert json.loads((await whole(client, result))[0].text) == list(range(1000))
