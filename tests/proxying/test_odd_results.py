"""Servers whose results break the specification, seen by clients, by groups and through proxies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
from tests.hosting.members import describe
from tests.interaction.client.raw import RawPeer, discovery, scripted

from trio_mcp import Client, gateway, open_memory, proxy
from trio_mcp.client.opening import open_client
from trio_mcp.hosting import open_group
from trio_mcp.types import PromptReference, UnknownContent

GOOD = {"name": "good", "inputSchema": {"type": "object"}}
TOOLS = [
    {**GOOD, "annotations": {"readOnlyHint": "true", "title": "T"}, "x-own": 1},
    None,
    {"name": "bare", "icons": [{}]},
    {"title": "nameless"},
]
UNKNOWN = {"type": "hologram", "data": [1]}
RESULTS: dict[str, Any] = {
    "tools/list": {"tools": TOOLS},
    "tools/call": {"content": [{"type": "text", "text": "useful", "annotations": []}, UNKNOWN]},
    "prompts/list": {"prompts": [{"name": "p", "title": 5}, None]},
    "prompts/get": {"messages": [{"role": "system", "content": "useful"}, {"role": "user", "content": UNKNOWN}]},
    "resources/list": {"resources": [{"uri": "a:b"}, {"uri": "", "name": "n"}, {}]},
    "resources/templates/list": {"resourceTemplates": None},
    "resources/read": {"contents": [{"text": "useful"}, {"uri": "a:c", "text": {"a": 1}}]},
    "completion/complete": {"completion": {"values": ["useful", 5], "total": "2"}},
}
CAPABILITIES: dict[str, Any] = {"tools": [], "prompts": True, "resources": {"subscribe": "no"}, "completions": {}}
INFO = {"name": "odd"}


async def odd_server(peer: RawPeer) -> None:
    """Answer each request with a result that breaks the specification, in the era of the client."""
    while True:
        message = await peer.read()
        method = message.get("method")
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            await peer.result(message, {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": INFO})
        elif method == "server/discover":
            meta = {"io.modelcontextprotocol/serverInfo": INFO}
            await peer.result(message, {**discovery(), "capabilities": CAPABILITIES, "_meta": meta})
        elif method in RESULTS:
            await peer.result(message, RESULTS[method])


@asynccontextmanager
async def opened(back: Any, front: Any) -> AsyncGenerator[Client]:
    """A client of `odd_server`, through a proxy if there is a ``front``."""
    async with scripted(odd_server) as (channel, _):

        def behind(**options: Any) -> AbstractAsyncContextManager[Client]:
            changed: dict[str, Any] = {**options, "era": back}
            if back == "modern":
                changed.pop("revision", None)
            return open_client(channel, **changed)

        async with behind() if front is None else open_memory(proxy(behind), era=front) as client:
            yield client


@pytest.mark.parametrize("back", ["legacy", "modern"])
@pytest.mark.parametrize("front", [None, "legacy", "modern"])
async def test_proxy_forwards_the_readable_parts_of_malformed_results_and_logs_one_warning(
    autojump_clock: object, back: str, front: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    tools: list[Any] = []
    async with opened(back, front) as client:
        assert client.server_info is not None
        assert client.server_info.name == "odd"
        for _ in range(2):
            tools = [tool async for tool in client.list_tools(refresh=True)]
        assert [tool.name for tool in tools] == ["good", "bare"]
        assert tools[0].annotations is not None
        assert (tools[0].annotations.title, tools[0].annotations.read_only_hint) == ("T", None)
        assert [prompt.name async for prompt in client.list_prompts()] == ["p"]
        assert [(each.uri, each.name) async for each in client.list_resources()] == [("a:b", "a:b"), ("", "n")]
        assert [each async for each in client.list_resource_templates()] == []
        result = await client.call_tool("good")
        assert (result.text, result.content[1]) == ("useful", UnknownContent(UNKNOWN))
        prompt = await client.get_prompt("p")
        assert (prompt.text, prompt.messages[1].content) == ("useful", UnknownContent(UNKNOWN))
        read = await client.read_resource("a:b")
        assert read.text == 'useful\n{"a": 1}'
        assert (await client.complete(PromptReference("p"), "a", "u")).values == ["useful"]
    warnings = [record.getMessage() for record in caplog.records if "the result of tools/list" in record.getMessage()]
    assert len(warnings) == 1, "one warning for the same faults"
    assert "missing 'name' @ $.tools[3]" in warnings[0]


@pytest.mark.parametrize("back", ["legacy", "modern"])
@pytest.mark.parametrize("front", [None, "legacy", "modern"])
@pytest.mark.parametrize("odd", ["x", [1], 5, None])
async def test_proxy_ignores_malformed_meta_of_a_result(
    autojump_clock: object, back: str, front: str | None, odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method, result in RESULTS.items():
        monkeypatch.setitem(RESULTS, method, {**result, "_meta": odd})
    async with opened(back, front) as client:
        assert [tool.name async for tool in client.list_tools()] == ["good", "bare"]
        assert (await client.call_tool("good")).text == "useful"
        assert (await client.get_prompt("p")).text == "useful"
        if front is not None:
            assert isinstance((await client.request("tools/call", {"name": "good"}, dict)).get("_meta", {}), dict)


@pytest.mark.parametrize("front", ["legacy", "modern"])
async def test_proxy_ignores_the_result_type_field_of_a_legacy_server(
    autojump_clock: object, front: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RESULTS, "tools/call", {**RESULTS["tools/call"], "resultType": "input_required"})
    async with opened("legacy", front) as client:
        assert (await client.call_tool("good")).text == "useful"


async def _with_member(use: Callable[[Any], Awaitable[None]]) -> None:
    async with open_group({"m": describe(odd_server)}) as group:
        with trio.fail_after(60):
            async for _ in group.catalogue.watch():
                if {"m__good", "m__bare"} <= group.catalogue.tools.keys():
                    break
            await use(group)


async def test_group_lists_the_valid_tools_of_a_server_and_reports_its_invalid_tools(autojump_clock: object) -> None:
    async def use(group: Any) -> None:
        status = group.statuses["m"]
        assert status.state == "ready"
        assert "missing 'name' @ $.tools[3]" in status.problems["tools"]
        result = await group.call_tool("m__good")
        assert (result.text, result.content[1]) == ("useful", UnknownContent(UNKNOWN))

    await _with_member(use)


@pytest.mark.parametrize("schema", [{}, {"anyOf": [{"type": "object"}]}, {"type": ["object", "null"]}, {"type": 5}])
async def test_gateway_adds_type_object_to_input_schemas_without_a_type(
    autojump_clock: object, schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RESULTS, "tools/list", {"tools": [GOOD, {"name": "bare", "inputSchema": schema}]})

    async def use(group: Any) -> None:
        assert group.catalogue.tools["m__bare"].item.input_schema == schema
        async with open_memory(gateway(group)) as client:
            _, bare = [tool async for tool in client.list_tools()]
            assert bare.input_schema == {**schema, "type": "object"}

    await _with_member(use)


@pytest.mark.parametrize("front", ["legacy", "modern"])
async def test_gateway_forwards_unknown_content_types(autojump_clock: object, front: Any) -> None:
    async def use(group: Any) -> None:
        async with open_memory(gateway(group), era=front) as client:
            assert [tool.name async for tool in client.list_tools()] == ["m__good", "m__bare"]
            result = await client.call_tool("m__good")
            assert (result.text, result.content[1]) == ("useful", UnknownContent(UNKNOWN))
            assert (await client.complete(PromptReference("m__p"), "a", "u")).values == ["useful"]

    await _with_member(use)


async def test_gateway_lists_a_tool_whose_schema_has_an_invalid_header_annotation(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "x-mcp-header": "A"}}}
    monkeypatch.setitem(RESULTS, "tools/list", {"tools": [GOOD, {"name": "bare", "inputSchema": schema}]})
    monkeypatch.setitem(RESULTS, "completion/complete", {"completions": 5})

    async def use(group: Any) -> None:
        async with open_memory(gateway(group)) as client:
            assert [tool.name async for tool in client.list_tools()] == ["m__good", "m__bare"]
            assert (await client.complete(PromptReference("m__p"), "a", "u")).values == []

    await _with_member(use)
