"""TL, SV and MR-13: tools, results and rules of a server, per revision."""

from __future__ import annotations

import threading
from typing import Any, TypedDict

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import RequestContext, Server, ToolError, error_result, text_result
from trio_mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ClientCapabilities,
    EmbeddedResource,
    Icon,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

from .memory_peer import LATEST_LEGACY, LEGACY, MODERN, REVISIONS, connected

EACH = pytest.mark.parametrize("revision", REVISIONS)
GREET = {"type": "ref/prompt", "name": "greet"}
BLOCKS: dict[str, Any] = {
    "text": TextContent("t"),
    "image": ImageContent("aGk=", "image/png"),
    "audio": AudioContent("aGk=", "audio/wav"),
    "link": ResourceLink(name="one", uri="x://one", mime_type="text/plain"),
    "embedded": EmbeddedResource(TextResourceContents("x://one", "inside", "text/plain")),
    "blob": EmbeddedResource(BlobResourceContents("x://one", "aGk=")),
}


class Weather(TypedDict):
    """A structured result."""

    celsius: float


@pytest.fixture
def server() -> Server:
    server = Server(
        "rows",
        "1.0.0",
        title="Rows",
        description="One of each",
        icons=[Icon("https://example.org/i.png")],
        website_url="https://example.org/",
    )

    @server.tool(
        title="Weather",
        description="How it is",
        icons=[Icon("https://example.org/w.png")],
        annotations=ToolAnnotations(read_only_hint=True),
        meta={"example.org/k": 1},
    )
    async def weather(city: str) -> Weather:
        return {"celsius": 21.5}

    @server.tool
    async def block(kind: str) -> CallToolResult:
        return CallToolResult([BLOCKS[kind]])

    @server.tool(output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    async def forgetful() -> CallToolResult:
        return CallToolResult([TextContent("no structured content")])

    @server.tool(
        output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        check_output=True,
    )
    async def wrong() -> dict[str, Any]:
        return {"n": "seven"}

    @server.tool(output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    async def unchecked() -> dict[str, Any]:
        return {"n": "seven"}

    @server.tool(requires=["sampling.tools"])
    async def demanding() -> str:
        return "satisfied"

    @server.tool
    async def nothing() -> None:
        return

    @server.tool
    async def fails(how: str) -> CallToolResult:
        if how == "raise":
            raise ToolError("the disk is full")
        return error_result("the disk is full")

    @server.tool
    async def helped() -> CallToolResult:
        return text_result("done")

    @server.resource("x://one", title="One", mime_type="text/plain", ttl_ms=5000, cache_scope="public")
    async def one() -> str:
        return "text"

    @server.resource("x://items/{number}")
    async def item(number: int) -> bytes:
        return b"hi"

    @server.prompt(title="Greet")
    async def greet(name: str) -> str:
        return f"Greet {name}."

    @server.completion(prompt="greet", argument="name")
    async def names(value: str) -> list[str]:
        return [value + str(number) for number in range(250)]

    return server


# Tools


async def test_tl_01_tl_02_sync_tools_run_in_threads_and_async_tools_run_in_the_event_loop() -> None:
    server = Server("threads", "1.0.0")
    seen: list[threading.Thread] = []

    @server.tool
    def plain() -> str:
        seen.append(threading.current_thread())
        return "plain"

    @server.tool
    async def context_only(ctx: RequestContext) -> str:
        seen.append(threading.current_thread())
        return ctx.revision.name

    async with connected(server) as peer:
        assert await peer.text("plain") == "plain"
        assert await peer.text("context_only") == LATEST_LEGACY
        assert seen[0] is not threading.main_thread()
        assert seen[1] is threading.main_thread()


@EACH
async def test_tl_03_sv_01_listed_tool_has_only_fields_of_the_negotiated_revision(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        tools = (await peer.request("tools/list"))["result"]["tools"]
        tool = next(tool for tool in tools if tool["name"] == "weather")
        expected = {"name", "description", "inputSchema"}
        if revision >= "2025-03-26":
            expected |= {"annotations"}
            assert tool["annotations"] == {"readOnlyHint": True}, "defaults are not written to the wire"
        if revision >= "2025-06-18":
            expected |= {"title", "outputSchema", "_meta"}
        if revision >= "2025-11-25":
            expected |= {"icons"}
        assert set(tool) == expected


def test_tl_03_tl_04_resolved_method_of_tool_annotations_returns_defaults_for_missing_hints() -> None:
    resolved = ToolAnnotations().resolved()
    hints = (resolved.read_only_hint, resolved.destructive_hint, resolved.idempotent_hint, resolved.open_world_hint)
    assert hints == (False, True, False, True)


@EACH
async def test_tl_06_tl_08_tool_results_have_content_and_failures_have_is_error_set(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        assert (await peer.call("nothing"))["content"] == []
        assert (await peer.call("helped"))["content"] == [{"type": "text", "text": "done"}]
        assert not (await peer.call("helped")).get("isError")
        for how in ("raise", "return"):
            failed = await peer.call("fails", {"how": how})
            assert failed["isError"] is True
            assert failed["content"] == [{"type": "text", "text": "the disk is full"}]


@EACH
async def test_tl_07_tool_with_an_output_schema_must_return_structured_content(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        result = await peer.call("weather", {"city": "Rome"})
        assert result["content"] == [{"type": "text", "text": '{"celsius":21.5}'}]
        if revision >= "2025-06-18":
            assert result["structuredContent"] == {"celsius": 21.5}
        else:
            assert "structuredContent" not in result
        assert (await peer.call("forgetful"))["isError"] is True


@EACH
async def test_tl_09_call_of_an_unknown_tool_gets_error_invalid_params(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        assert (await peer.error("no such tool"))["code"] == -32602


CONTENT: dict[str, tuple[str, Any]] = {
    "text": ("2024-11-05", {"type": "text", "text": "t"}),
    "image": ("2024-11-05", {"type": "image", "data": "aGk=", "mimeType": "image/png"}),
    "audio": ("2025-03-26", {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}),
    "link": ("2025-06-18", {"type": "resource_link", "uri": "x://one", "name": "one", "mimeType": "text/plain"}),
    "embedded": (
        "2024-11-05",
        {"type": "resource", "resource": {"uri": "x://one", "text": "inside", "mimeType": "text/plain"}},
    ),
    "blob": ("2024-11-05", {"type": "resource", "resource": {"uri": "x://one", "blob": "aGk="}}),
}


@EACH
async def test_tl_10_sv_01_content_block_that_a_revision_lacks_is_sent_as_text_or_an_error(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        for kind, (since, expected) in CONTENT.items():
            if revision >= since:
                assert (await peer.call("block", {"kind": kind}))["content"] == [expected]
            elif kind == "link":  # below that a link is text that holds the URI
                (block,) = (await peer.call("block", {"kind": kind}))["content"]
                assert block["type"] == "text"
                assert "x://one" in block["text"]
            else:  # audio: a failure that the author sees, and no silent loss
                assert (await peer.call("block", {"kind": kind}))["isError"] is True


async def test_tl_12_structured_output_validation_can_be_disabled(autojump_clock: MockClock, server: Server) -> None:
    async with connected(server) as peer:
        assert (await peer.call("wrong"))["isError"] is True
        assert (await peer.call("unchecked"))["structuredContent"] == {"n": "seven"}


def test_tl_13_duplicate_tool_resource_and_prompt_names_are_refused(server: Server) -> None:
    with pytest.raises(ValueError, match="weather"):

        @server.tool(name="weather")
        async def again() -> None: ...

    with pytest.raises(ValueError, match="x://one"):

        @server.resource("x://one")
        async def other() -> str:
            return ""

    with pytest.raises(ValueError, match="greet"):

        @server.prompt(name="greet")
        async def third() -> str:
            return ""


@EACH
async def test_tl_14_error_of_a_tool_names_the_required_capability_that_the_client_lacks(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        error = await peer.error("demanding")
        if revision == MODERN:
            assert error["code"] == -32021
            assert error["data"] == {"requiredCapabilities": {"sampling": {"tools": {}}}}
        else:
            assert error["code"] == -32600
            assert "data" not in error
    if revision in (LATEST_LEGACY, MODERN):
        async with connected(server, revision, {"sampling": {"tools": {}}}) as peer:
            assert await peer.text("demanding") == "satisfied"
    assert ClientCapabilities().supports("sampling.tools") is False


@EACH
async def test_request_params_that_a_revision_lacks_are_ignored(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    newer = {"inputResponses": [1], "requestState": {}} if revision != MODERN else {}
    later = {"task": 3} if revision != LATEST_LEGACY else {}
    async with connected(server, revision) as peer:
        for method, params in (
            ("tools/call", {"name": "helped", "arguments": {}, **newer, **later}),
            ("resources/read", {"uri": "x://one", **newer, **later}),
            ("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}, **newer, **later}),
        ):
            assert "result" in await peer.request(method, params), method


# Server rules


@EACH
async def test_mr_13_sv_01_only_modern_results_have_result_type_and_server_info(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        for method, params in (
            ("tools/list", {}),
            ("tools/call", {"name": "helped", "arguments": {}}),
            ("resources/read", {"uri": "x://one"}),
            ("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}),
            ("completion/complete", {"ref": GREET, "argument": {"name": "name", "value": ""}}),
        ):
            result = (await peer.request(method, params))["result"]
            if revision == MODERN:
                assert result["resultType"] == "complete"
                assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "rows"
            else:
                assert "resultType" not in result
                assert "_meta" not in result


@pytest.mark.parametrize("revision", LEGACY)
async def test_sv_01_initialize_result_has_only_fields_of_the_negotiated_revision(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, None) as peer:
        opened = await peer.open(revision)
        info = {"name", "version"}
        info |= {"title"} if revision >= "2025-06-18" else set()
        info |= {"icons", "websiteUrl", "description"} if revision >= "2025-11-25" else set()
        assert set(opened["serverInfo"]) == info
        assert ("completions" in opened["capabilities"]) is (revision >= "2025-03-26")


@EACH
async def test_sv_02_malformed_message_in_a_batch_gets_a_separate_error(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        await peer.send([peer.message("tools/list", id=1), 42, peer.message("no/such", id=2)])
        replies = await peer.everything()
        codes = {m["id"]: m.get("error", {}).get("code") for m in replies}
        if revision in LEGACY[:2]:
            assert codes == {1: None, None: -32600, 2: -32601}
            assert len(peer.batches) == 1
        else:
            assert codes == {None: -32600}


@EACH
async def test_sv_03_unknown_resource_error_code_depends_on_the_revision(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        error = (await peer.request("resources/read", {"uri": "x://none"}))["error"]
        assert error["code"] == (-32602 if revision == MODERN else -32002)
        assert error["data"] == {"uri": "x://none"}


@EACH
async def test_sv_05_lists_are_paginated_with_opaque_cursors(autojump_clock: MockClock, revision: str) -> None:
    server = Server("pages", page_size=2)
    for number in range(5):

        async def tool() -> None: ...

        server.tool(name=f"t{number}")(tool)

    async with connected(server, revision) as peer:
        names: list[str] = []
        cursor: str | None = None
        pages = 0
        while True:
            result = (await peer.request("tools/list", {"cursor": cursor} if cursor else {}))["result"]
            names += [tool["name"] for tool in result["tools"]]
            pages += 1
            cursor = result.get("nextCursor")
            if cursor is None:
                break
        assert (names, pages) == (["t0", "t1", "t2", "t3", "t4"], 3)
        for bad in ("", "nonsense", "cHJvbXB0OjE=", "2", 7):
            assert (await peer.request("tools/list", {"cursor": bad}))["error"]["code"] == -32602


async def test_sv_06_require_initialized_refuses_requests_before_initialized(autojump_clock: MockClock) -> None:
    server = Server("strict", require_initialized=True)
    async with connected(server, None) as peer:
        assert (await peer.request("tools/list"))["error"]["code"] == -32002
        assert (await peer.request("ping"))["result"] == {}
        assert "result" in await peer.request("initialize", peer.opening())
        assert (await peer.request("tools/list"))["error"]["code"] == -32002
        await peer.notify("notifications/initialized")
        assert "result" in await peer.request("tools/list")


async def test_sv_07_modern_results_have_cache_hints_and_legacy_results_do_not(
    autojump_clock: MockClock, server: Server
) -> None:
    async with connected(server, MODERN) as peer:
        for method, params, hints in (
            ("tools/list", {}, (0, "private")),
            ("resources/list", {}, (0, "private")),
            ("resources/templates/list", {}, (0, "private")),
            ("prompts/list", {}, (0, "private")),
            ("server/discover", {}, (0, "private")),
            ("resources/read", {"uri": "x://one"}, (5000, "public")),
            ("resources/read", {"uri": "x://items/7"}, (0, "private")),
        ):
            result = (await peer.request(method, params))["result"]
            assert (result["ttlMs"], result["cacheScope"]) == hints, method
    async with connected(server) as peer:
        assert "ttlMs" not in (await peer.request("tools/list"))["result"]


@EACH
async def test_sv_08_completions_beyond_a_hundred_are_cut_off_and_has_more_is_true(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        params = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "A"}}
        completion = (await peer.request("completion/complete", params))["result"]["completion"]
        assert completion["values"] == [f"A{number}" for number in range(100)]
        assert (completion["total"], completion["hasMore"]) == (250, True)
        params["argument"] = {"name": "other", "value": "A"}
        assert (await peer.request("completion/complete", params))["result"]["completion"]["values"] == []
        params["ref"] = {"type": "ref/prompt", "name": "none"}
        assert (await peer.request("completion/complete", params))["error"]["code"] == -32602


@pytest.mark.parametrize("revision", LEGACY)
async def test_sv_09_ping_is_answered_before_and_after_initialize(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, None) as peer:
        assert (await peer.request("ping"))["result"] == {}
        await peer.open(revision)
        assert (await peer.request("ping"))["result"] == {}


async def test_sv_11_removing_a_tool_resource_or_prompt_sends_a_list_changed_notification(
    autojump_clock: MockClock, server: Server
) -> None:
    async with connected(server) as peer:
        await peer.request("ping")  # the handshake is complete
        server.remove_tool("helped")
        server.remove_resource("x://one")
        server.remove_prompt("greet")
        kinds = ("tools", "resources", "prompts")
        told = [await peer.notification(f"notifications/{kind}/list_changed") for kind in kinds]
        assert told == [{}, {}, {}]
        assert (await peer.error("helped"))["code"] == -32602


async def test_sv_11_tool_calls_above_the_concurrency_limit_of_the_tool_are_queued(autojump_clock: MockClock) -> None:
    server = Server("limited", "1.0.0")
    running, most = 0, 0

    @server.tool(max_concurrency=2)
    async def limited() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        return "done"

    async with connected(server) as peer:
        calls = [await peer.start("limited") for _ in range(6)]
        await peer.cancel(calls[5])
        for call in calls[:5]:
            assert "result" in await peer.reply(call)
        assert most == 2
        assert await peer.everything() == []
