"""Nonconforming results: readable parts are kept, and the faults are reported."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from trio_mcp import ProtocolViolation
from trio_mcp.protocol.converters import repaired_result, structure_result, unstructure
from trio_mcp.protocol.revisions import REVISIONS
from trio_mcp.protocol.types.lifecycle import DiscoverResult, Icon, Implementation, InitializeResult
from trio_mcp.protocol.types.offers import (
    CompleteResult,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Prompt,
    PromptArgument,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from trio_mcp.protocol.types.sampling import CreateMessageResult, ListRootsResult, Root
from trio_mcp.protocol.types.tools import ListToolsResult
from trio_mcp.types import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ElicitResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
    UnknownContent,
)

GOOD: dict[str, Any] = {"name": "good", "inputSchema": {"type": "object"}}
ANY = {"type": "object"}
TEXT = {"type": "text", "text": "useful"}
USEFUL = TextContent("useful")


def read(kind: Any, data: Any) -> tuple[Any, list[str]]:
    """What is read of ``data``, and what is reported."""
    reports: list[str] = []
    return structure_result("a/method", data, kind, lambda _, faults: reports.append(faults)), reports


@pytest.mark.parametrize(
    ("odd", "tools", "reported"),
    [
        ({"name": "x"}, [Tool("x", ANY)], "missing 'inputSchema' @ $.tools[0]"),
        ({"name": "x", "inputSchema": []}, [Tool("x", ANY)], "expected an object @ $.tools[0].inputSchema"),
        ({"name": "x", "inputSchema": None}, [Tool("x", ANY)], "expected an object @ $.tools[0].inputSchema"),
        (None, [], "expected an object @ $.tools[0]"),
        ("x", [], "expected an object @ $.tools[0]"),
        ({**GOOD, "name": 5}, [], "expected a string @ $.tools[0].name"),
        ({"inputSchema": ANY}, [], "missing 'name' @ $.tools[0]"),
        ({**GOOD, "description": 5}, [Tool("good", ANY)], "expected a string or null @ $.tools[0].description"),
        ({**GOOD, "outputSchema": "x"}, [Tool("good", ANY)], "@ $.tools[0].outputSchema"),
        ({**GOOD, "_meta": []}, [Tool("good", ANY)], "@ $.tools[0]._meta"),
        ({**GOOD, "annotations": []}, [Tool("good", ANY)], "@ $.tools[0].annotations"),
        (
            {**GOOD, "annotations": {"readOnlyHint": "true", "title": "T"}},
            [Tool("good", ANY, annotations=ToolAnnotations("T"))],
            "expected true or false or null @ $.tools[0].annotations.readOnlyHint",
        ),
        (
            {**GOOD, "icons": [{"mimeType": "image/png"}, {"src": "u", "theme": "pink"}, "v"]},
            [Tool("good", ANY, icons=[Icon("u"), Icon("v")])],
            "missing 'src' @ $.tools[0].icons[0]",
        ),
        ({**GOOD, "icons": [{}]}, [Tool("good", ANY)], "missing 'src' @ $.tools[0].icons[0]"),
        ({**GOOD, "execution": {"taskSupport": "maybe"}}, None, "@ $.tools[0].execution.taskSupport"),
    ],
)
def test_tool_list_with_an_invalid_tool_keeps_the_valid_tools(
    odd: Any, tools: list[Tool] | None, reported: str
) -> None:
    found, reports = read(ListToolsResult, {"tools": [odd, {**GOOD, "name": "fine"}]})
    assert found.tools[-1] == Tool("fine", ANY)
    assert tools is None or found.tools[:-1] == tools
    (words,) = reports
    assert reported in words


@pytest.mark.parametrize(
    ("kind", "data", "items"),
    [
        (ListToolsResult, {"tools": None}, []),
        (ListToolsResult, {}, []),
        (ListToolsResult, {"tools": GOOD, "nextCursor": 5, "_meta": "x"}, [Tool("good", ANY)]),
        (ListToolsResult, {"tools": [GOOD, None], "ttlMs": "x", "cacheScope": 3}, [Tool("good", ANY)]),
        (ListPromptsResult, {"prompts": [None, {"name": "p", "title": 5}]}, [Prompt("p")]),
        (
            ListPromptsResult,
            {"prompts": [{"name": "p", "arguments": ["a", {"name": "b", "required": "yes"}, {"description": "c"}]}]},
            [Prompt("p", arguments=[PromptArgument("a"), PromptArgument("b")])],
        ),
        (ListPromptsResult, {"prompts": [{"name": "p", "arguments": 5}]}, [Prompt("p")]),
        (
            ListResourcesResult,
            {"resources": [{"name": "n"}, {"title": "t"}, {}, {"uri": "u", "mimeType": 5}]},
            [Resource("u", "u")],
        ),
        (ListResourcesResult, {"resources": [{"uri": "u", "name": "n", "size": "4 kB"}]}, [Resource("u", "n")]),
        (
            ListResourceTemplatesResult,
            {"resourceTemplates": [{"name": "n"}, None, {"uriTemplate": "u:{x}", "annotations": {"priority": "high"}}]},
            [ResourceTemplate("u:{x}", "u:{x}", annotations=Annotations())],
        ),
        (ListRootsResult, {"roots": [{"name": "n"}, {"uri": "file:///a", "name": 5}]}, [Root("file:///a")]),
    ],
)
def test_list_result_with_invalid_items_keeps_the_valid_items(kind: Any, data: Any, items: list[Any]) -> None:
    found, reports = read(kind, data)
    assert (
        next(value for value in (getattr(found, name) for name in kind.__slots__) if isinstance(value, list)) == items
    )
    assert len(reports) == 1


@pytest.mark.parametrize(
    ("odd", "block"),
    [
        ({"type": "hologram", "data": 1}, UnknownContent({"type": "hologram", "data": 1})),
        ({"type": "image", "data": "aa"}, UnknownContent({"type": "image", "data": "aa"})),
        ({"type": "text", "text": None}, UnknownContent({"type": "text", "text": None})),
        ({"type": "text", "text": {"a": 1}}, UnknownContent({"type": "text", "text": {"a": 1}})),
        (
            {"type": "resource", "resource": {"uri": "u"}},
            UnknownContent({"type": "resource", "resource": {"uri": "u"}}),
        ),
        ({"type": "resource_link", "name": "n"}, UnknownContent({"type": "resource_link", "name": "n"})),
        ({"type": []}, UnknownContent({"type": []})),
        ({"rows": 3}, UnknownContent({"rows": 3})),
        (5, UnknownContent(5)),
        ([TEXT], UnknownContent([TEXT])),
        ("more", TextContent("more")),
        ({"text": "more"}, TextContent("more")),
        ({"type": "resource_link", "uri": "u"}, ResourceLink("u", "u")),
        ({"type": "audio", "data": "aa", "mimeType": "a/b", "annotations": 1}, AudioContent("aa", "a/b")),
        (
            {
                "type": "image",
                "data": "aa",
                "mimeType": "a/b",
                "annotations": {"audience": ["user", None], "priority": "1"},
            },
            ImageContent("aa", "a/b", annotations=Annotations(audience=["user"])),
        ),
        (
            {"type": "text", "text": "a", "annotations": {"audience": ["all"]}},
            TextContent("a", annotations=Annotations()),
        ),
        (
            {"type": "resource", "resource": {"text": "a"}, "_meta": "x"},
            EmbeddedResource(TextResourceContents("", "a")),
        ),
    ],
)
def test_result_with_an_invalid_content_block_keeps_the_other_blocks(odd: Any, block: Any) -> None:
    found, reports = read(CallToolResult, {"content": [odd, TEXT]})
    assert found.content == [block, USEFUL]
    assert len(reports) == 1
    assert "$.content[0]" in reports[0]


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=str)
def test_unknown_content_block_is_written_as_received(revision: Any) -> None:
    raw = {"type": "hologram", "depth": [1, None]}
    assert unstructure(CallToolResult([UnknownContent(raw)]), revision)["content"] == [raw]


@pytest.mark.parametrize(("raw", "name"), [({"type": "x"}, "x"), ({"type": 5}, ""), ({}, ""), ([], "")])
def test_unknown_content_block_has_the_type_name_that_was_received(raw: Any, name: str) -> None:
    assert UnknownContent(raw).type == name


@pytest.mark.parametrize(
    ("content", "blocks"),
    [
        ("useful", [USEFUL]),
        (TEXT, [USEFUL]),
        (None, []),
        ([None, TEXT], [USEFUL]),
        ({"a": 1}, [UnknownContent({"a": 1})]),
    ],
)
def test_content_that_is_not_a_list_of_blocks_is_read_without_an_error(content: Any, blocks: list[Any]) -> None:
    assert read(CallToolResult, {"content": content})[0].content == blocks


@pytest.mark.parametrize("value", ["true", "True", "yes", 1, "disk full", ["disk full"], {"code": 5}])
def test_truthy_is_error_value_that_is_not_a_boolean_is_read_as_failure(value: Any) -> None:
    assert read(CallToolResult, {"content": [TEXT], "isError": value})[0].is_error is True


@pytest.mark.parametrize("value", ["false", "False", "no", "0", "", 0, [], {}])
def test_falsy_is_error_value_that_is_not_a_boolean_is_read_as_success(value: Any) -> None:
    found, _ = read(CallToolResult, {"content": [TEXT], "isError": value})
    assert (found.is_error, found.content) == (False, [USEFUL])


VERSION = {"protocolVersion": "2025-06-18"}
INFO = {"serverInfo": {"name": "n", "version": "1"}}


@pytest.mark.parametrize(
    ("capabilities", "declared"),
    [
        ([], []),
        (None, []),
        ("tools", []),
        ({"tools": []}, ["tools"]),
        ({"tools": True, "prompts": False, "resources": None}, ["tools"]),
        ({"tools": {"listChanged": "yes"}, "experimental": []}, ["tools"]),
        ({"tools": ["list", "call"], "logging": True, "completions": ""}, ["tools", "logging"]),
        ({"tools": {}, "tasks": True, "extensions": "x"}, ["tools"]),
    ],
)
def test_malformed_capability_counts_as_declared_if_its_name_is_present(capabilities: Any, declared: list[str]) -> None:
    names = ("tools", "prompts", "resources", "logging", "completions")
    for kind, more in ((InitializeResult, {**VERSION, **INFO}), (DiscoverResult, {"supportedVersions": ["x"]})):
        found, reports = read(kind, {**more, "capabilities": capabilities})
        assert [name for name in names if found.capabilities.supports(name)] == declared
        assert len(reports) == 1


@pytest.mark.parametrize(
    ("info", "name", "version"),
    [
        (None, "unknown", ""),
        ([], "unknown", ""),
        ("n", "n", ""),
        ({"name": "n"}, "n", ""),
        ({"name": "n", "version": None}, "n", ""),
        ({"version": "1"}, "unknown", "1"),
        ({"name": "n", "version": "1", "icons": [None], "title": {}, "websiteUrl": 5}, "n", "1"),
    ],
)
def test_malformed_server_info_is_read_without_an_error(info: Any, name: str, version: str) -> None:
    found, _ = read(InitializeResult, {**VERSION, "capabilities": {}, "serverInfo": info, "instructions": ["x"]})
    assert found.server_info == Implementation(name, version)
    assert found.instructions is None


@pytest.mark.parametrize("nothing", [{}, {"instructions": "x"}, [], "x", None, {**INFO, "protocolVersion": 5}])
def test_initialize_result_without_a_version_raises_protocol_violation(nothing: Any) -> None:
    with pytest.raises(ProtocolViolation):
        read(InitializeResult, nothing)


@pytest.mark.parametrize(
    ("message", "role", "content"),
    [
        ({"role": "user", "content": "useful"}, "user", USEFUL),
        ({"role": "system", "content": TEXT}, "user", USEFUL),
        ({"role": "Assistant", "content": TEXT}, "assistant", USEFUL),
        ({"role": "user", "content": [TEXT]}, "user", USEFUL),
        ({"content": TEXT}, "user", USEFUL),
        ("useful", "user", USEFUL),
        ({"role": "assistant", "content": {"type": "video"}}, "assistant", UnknownContent({"type": "video"})),
    ],
)
def test_malformed_prompt_message_is_read_without_an_error(message: Any, role: str, content: Any) -> None:
    found, _ = read(GetPromptResult, {"messages": [message, None], "description": 5})
    assert [(each.role, each.content) for each in found.messages] == [(role, content)]


def test_prompt_message_with_several_blocks_becomes_several_messages() -> None:
    found, _ = read(
        GetPromptResult, {"messages": [{"role": "assistant", "content": ["one", {"type": "text", "text": "two"}]}]}
    )
    assert (found.text, {each.role for each in found.messages}) == ("one\ntwo", {"assistant"})


@pytest.mark.parametrize(
    ("contents", "read_as"),
    [
        ("useful", TextResourceContents("", "useful")),
        ({"text": "useful"}, TextResourceContents("", "useful")),
        ({"uri": "u", "text": {"a": "é"}}, TextResourceContents("u", '{"a": "é"}')),
        ({"uri": "u", "text": None, "blob": "aa"}, BlobResourceContents("u", "aa")),
        ({"uri": 5, "blob": "aa", "mimeType": 5}, BlobResourceContents("", "aa")),
    ],
)
def test_malformed_resource_contents_are_read_without_an_error(contents: Any, read_as: Any) -> None:
    good = {"uri": "v", "text": "good"}
    for whole in ([contents, good], [good, contents, None, {"uri": "u"}, {"uri": "u", "text": None}]):
        found, _ = read(ReadResourceResult, {"contents": whole, "ttlMs": "x"})
        assert sorted(map(repr, found.contents)) == sorted(map(repr, [read_as, TextResourceContents("v", "good")]))
    assert read(ReadResourceResult, {"contents": contents})[0].contents == [read_as]


@pytest.mark.parametrize(
    ("completion", "values"),
    [
        ({"values": ["useful", 5, None], "total": "12", "hasMore": "no"}, ["useful"]),
        ({"values": None}, []),
        ({"values": "useful"}, ["useful"]),
        ({"total": 0}, []),
        (None, []),
        ([], []),
    ],
)
def test_malformed_completion_result_keeps_its_string_values(completion: Any, values: list[str]) -> None:
    found, _ = read(CompleteResult, {"completion": completion})
    assert (found.completion.values, found.completion.has_more) == (values, None)


def test_malformed_sampling_result_is_read_without_an_error() -> None:
    found, _ = read(CreateMessageResult, {"role": "model", "content": [TEXT, {"type": "video"}], "stopReason": 5})
    assert (found.text, found.role, found.model) == ("useful", "assistant", "unknown")
    with pytest.raises(ProtocolViolation):
        read(CreateMessageResult, {"role": "assistant", "content": None, "model": "m"})


def test_malformed_elicitation_result_raises_protocol_violation() -> None:
    with pytest.raises(ProtocolViolation, match=r"\$\.content"):
        read(ElicitResult, {"action": "accept", "content": "yes"})


def test_repair_of_a_malformed_result_keeps_unknown_fields() -> None:
    tool = {**GOOD, "annotations": {"readOnlyHint": "true", "x": 1}, "future": 1}
    data = {"tools": [tool, None], "also": 2}
    mended = repaired_result("tools/list", data, ListToolsResult)
    assert mended == {"tools": [{**tool, "annotations": {"x": 1}}], "also": 2}
    assert tool["annotations"]["readOnlyHint"] == "true"
    assert len(data["tools"]) == 2


def test_warning_about_a_malformed_result_lists_five_errors_and_counts_the_rest() -> None:
    tools = [{"name": f"t{number}\n", "inputSchema": ANY, "title": 5} for number in range(20)] + [
        {"title": "\x1b" * 500}
    ]
    _, (words,) = read(ListToolsResult, {"tools": tools})
    assert words.count("expected") == 5
    assert words.endswith("; and 16 more")
    _, (words,) = read(
        ListToolsResult, {"tools": [{"name": "\x1b" * 500, "inputSchema": 1, "annotations": None}, {"uri": "\n" * 500}]}
    )
    assert words.isprintable()
    assert len(words) < 500


def test_result_with_too_many_invalid_items_raises_protocol_violation() -> None:
    with pytest.raises(ProtocolViolation, match="a/method"):
        read(ListToolsResult, {"tools": [None] * 10_001})
    with pytest.raises(ProtocolViolation, match="a/method"):
        read(CallToolResult, {"content": [5] * 10_001})


def test_malformed_result_read_as_an_extension_class_raises_protocol_violation() -> None:
    @attrs.frozen
    class Berth:
        name: str
        depth: int | None = None

    with pytest.raises(ProtocolViolation, match=r"\$\.depth"):
        read(Berth, {"name": "n", "depth": "deep"})
