"""Conversion of objects to JSON data and back: strict when reading, per revision when writing (SV-01)."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from trio_mcp.jsonrpc.errors import INVALID_PARAMS, CodedError
from trio_mcp.protocol.converters import NotExpressible, structure, structure_params, unstructure
from trio_mcp.protocol.revisions import LATEST_LEGACY, REVISIONS, Revision
from trio_mcp.protocol.types.content import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolResultContent,
    ToolUseContent,
)
from trio_mcp.protocol.types.elicitation import ElicitFormParams, ElicitParams, ElicitResult, ElicitURLParams
from trio_mcp.protocol.types.input_required import InputRequest, InputRequiredResult
from trio_mcp.protocol.types.lifecycle import (
    ClientCapabilities,
    DiscoverResult,
    Elicitation,
    Icon,
    Implementation,
    InitializeParams,
    Roots,
    Sampling,
    ServerCapabilities,
)
from trio_mcp.protocol.types.notifications import LogParams, ProgressParams, SetLevelParams
from trio_mcp.protocol.types.offers import (
    CompleteParams,
    GetPromptParams,
    ListResourcesResult,
    PageParams,
    PromptMessage,
    PromptReference,
    ReadResourceResult,
    Resource,
    ResourceTemplateReference,
)
from trio_mcp.protocol.types.sampling import (
    CreateMessageParams,
    CreateMessageResult,
    ModelPreferences,
    Root,
    SamplingMessage,
)
from trio_mcp.protocol.types.tools import CallToolParams, CallToolResult, ListToolsResult, Task, Tool, ToolAnnotations

ALL = list(REVISIONS.values())
FIRST, SECOND, THIRD, FOURTH, FIFTH = ALL
OBJECT = {"type": "object"}

every_revision = pytest.mark.parametrize("revision", ALL, ids=str)


def fault(data: Any, kind: Any) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        structure(data, kind)
    return str(caught.value)


def test_decoding_error_for_large_data_reports_only_the_first_invalid_field() -> None:
    assert fault({"messages": [1] * 100_000, "maxTokens": 5}, CreateMessageParams) == "expected an object"
    assert fault({"messages": [{}] * 100_000, "maxTokens": 5}, CreateMessageParams) == "missing 'role'"


# Reading


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        (CallToolParams, {"name": 3}, "expected a string @ $.name"),
        (CallToolParams, {"name": None}, "expected a string @ $.name"),
        (CallToolParams, {}, "missing 'name'"),
        (CallToolParams, [], "expected an object"),
        (CallToolParams, None, "expected an object"),
        (CallToolParams, {"name": "x", "arguments": []}, "expected an object @ $.arguments"),
        (CallToolParams, {"name": "x", "arguments": "{}"}, "expected an object @ $.arguments"),
        (PageParams, {"cursor": 3}, "expected a string or null @ $.cursor"),
        (Resource, {"uri": "u", "name": "n", "size": 1.5}, "expected an integer or null @ $.size"),
        (Resource, {"uri": "u", "name": "n", "size": True}, "expected an integer or null @ $.size"),
        (CreateMessageParams, {"messages": [], "maxTokens": True}, "expected an integer @ $.maxTokens"),
        (CreateMessageParams, {"messages": {}, "maxTokens": 1}, "expected a list"),
        (ListResourcesResult, {"resources": "abc"}, "expected a list of Resource @ $.resources"),
        (ListResourcesResult, {"resources": [{"uri": "u"}]}, "missing 'name' @ $.resources[0]"),
        (Icon, {"src": "s", "theme": "pink"}, "expected one of light, dark @ $.theme"),
        (Icon, {"src": "s", "theme": 3}, "expected one of light, dark @ $.theme"),
        (Icon, {"src": "s", "sizes": ["48x48", 3]}, "expected a string @ $.sizes[1]"),
        (Icon, {"src": "s", "sizes": "48x48"}, "expected a list of str @ $.sizes"),
        (Annotations, {"audience": ["all"]}, "expected one of user, assistant @ $.audience[0]"),
        (ToolAnnotations, {"readOnlyHint": 1}, "expected true or false or null @ $.readOnlyHint"),
        (GetPromptParams, {"name": "x", "arguments": {"a": 1}}, "expected a string @ $.arguments['a']"),
        (GetPromptParams, {"name": "x", "arguments": []}, "expected an object @ $.arguments"),
        (
            SetLevelParams,
            {"level": "loud"},
            "expected one of debug, info, notice, warning, error, critical, alert, emergency @ $.level",
        ),
        (SetLevelParams, {"level": []}, "expected one of debug"),
        (LogParams, {"level": "info"}, "missing 'data'"),
        (
            ProgressParams,
            {"progressToken": True, "progress": 1},
            "expected an integer or a string @ $.progressToken",
        ),
        (
            ProgressParams,
            {"progressToken": 1, "progress": "1"},
            "expected an integer or a number @ $.progress",
        ),
        (ModelPreferences, {"costPriority": 1.5}, "cost_priority must be from 0 to 1"),
        (TextContent, {"text": "a", "_meta": []}, "expected an object @ $._meta"),
        (PromptMessage, {"role": "user", "content": 3}, "expected an object @ $.content"),
        (PromptMessage, {"role": "user", "content": {}}, "the member 'type' must be one of"),
        (PromptMessage, {"role": "user", "content": {"type": []}}, "the member 'type' must be one of"),
        (PromptMessage, {"role": "user", "content": {"type": "video"}}, "the member 'type' must be one of"),
        (PromptMessage, {"role": "user", "content": {"type": "text"}}, "missing 'text' @ $.content"),
        (
            EmbeddedResource,
            {"resource": {"uri": "u"}},
            "must have a member text or blob @ $.resource",
        ),
        (EmbeddedResource, {"resource": 3}, "expected an object @ $.resource"),
        (ElicitResult, {"action": "maybe"}, "expected one of accept, decline, cancel @ $.action"),
        (ElicitResult, {"action": "accept", "content": {"a": {}}}, "strings, numbers, booleans"),
        (Task, {"taskId": "t"}, "missing 'createdAt'"),
        (InputRequest, {"method": "tools/call"}, "expected one of sampling/createMessage"),
        (InputRequiredResult, {"inputRequests": []}, "expected an object @ $.inputRequests"),
    ],
)
def test_decoding_error_reports_the_path_of_the_invalid_field(kind: Any, data: Any, words: str) -> None:
    assert words in fault(data, kind)


def test_decoding_error_for_small_data_reports_all_invalid_fields() -> None:
    words = fault({"protocolVersion": 1, "capabilities": {"roots": 3}}, InitializeParams)
    assert "$.protocolVersion" in words
    assert "$.capabilities.roots" in words
    assert "missing 'clientInfo'" in words


def test_invalid_request_params_raise_coded_error_invalid_params() -> None:
    with pytest.raises(CodedError, match=r"Invalid params: missing 'name'") as caught:
        structure_params({}, CallToolParams, LATEST_LEGACY)
    assert caught.value.code == INVALID_PARAMS


NOT_YET = {"task": 3, "inputResponses": [], "requestState": {}}


@every_revision
def test_request_param_that_a_revision_lacks_is_ignored(revision: Revision) -> None:
    had = {"2025-11-25": {"task"}, "2026-07-28": {"inputResponses", "requestState"}}.get(revision.name, set())
    for name, nonsense in NOT_YET.items():
        if name in had:
            with pytest.raises(CodedError, match=name):
                structure_params({"name": "echo", name: nonsense}, CallToolParams, revision)
        else:
            params = structure_params({"name": "echo", name: nonsense}, CallToolParams, revision)
            assert params == CallToolParams("echo")


def test_nested_field_that_a_revision_lacks_is_ignored() -> None:
    opening = {
        "protocolVersion": "2024-11-05",
        "capabilities": {"roots": {}, "tasks": True, "elicitation": 3},
        "clientInfo": {"name": "c", "version": "1", "icons": "none"},
    }
    old = structure_params(opening, InitializeParams, REVISIONS["2024-11-05"])
    assert (old.capabilities, old.client_info) == (ClientCapabilities(roots=Roots()), Implementation("c", "1"))
    with pytest.raises(ValueError, match=r"\$\.capabilities\.tasks"):
        structure(opening, InitializeParams)


def test_missing_request_params_are_read_as_empty_params() -> None:
    assert structure_params(None, PageParams, LATEST_LEGACY) == PageParams()


def test_integer_in_a_number_field_of_a_message_stays_an_integer() -> None:
    heard = structure({"progressToken": 1, "progress": 3, "total": 4.0}, ProgressParams)
    assert [type(heard.progress), type(heard.total)] == [int, float]
    assert type(structure({"priority": 1}, Annotations).priority) is int


def test_integral_float_is_accepted_in_an_integer_field_of_a_message() -> None:
    params = structure({"messages": [], "maxTokens": 5.0}, CreateMessageParams)
    assert (params.max_tokens, type(params.max_tokens)) == (5, int)
    with pytest.raises(ValueError, match="expected an integer"):
        structure({"messages": [], "maxTokens": 5.5}, CreateMessageParams)


def test_null_in_an_optional_message_field_is_treated_as_absent() -> None:
    assert structure({"cursor": None}, PageParams) == PageParams()


def test_meta_of_a_content_block_is_kept_unchanged() -> None:
    meta = {"x/y": [None, {"z": 1}], "progressToken": 0}
    assert structure({"type": "text", "text": "a", "_meta": meta}, TextContent).meta == meta


def test_content_block_is_read_as_the_class_that_its_type_field_names() -> None:
    wire = [
        {"type": "text", "text": "a"},
        {"type": "image", "data": "", "mimeType": "image/png"},
        {"type": "audio", "data": "", "mimeType": "audio/ogg"},
        {"type": "resource_link", "uri": "u", "name": "n"},
        {"type": "resource", "resource": {"uri": "u", "blob": ""}},
    ]
    heard = structure({"content": wire}, CallToolResult).content
    assert [type(block) for block in heard] == [
        TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource,
    ]  # fmt: skip


def test_resource_contents_are_read_as_text_or_binary_depending_on_the_text_or_blob_field() -> None:
    assert structure({"uri": "u", "text": ""}, ResourceContents) == TextResourceContents("u", "")
    assert structure({"uri": "u", "blob": ""}, ResourceContents) == BlobResourceContents("u", "")


def test_completion_reference_is_read_as_prompt_or_resource_reference_by_its_type() -> None:
    argument = {"name": "port", "value": "Br"}
    prompt = {"ref": {"type": "ref/prompt", "name": "n"}, "argument": argument}
    template = {"ref": {"type": "ref/resource", "uri": "u"}, "argument": argument}
    assert structure(prompt, CompleteParams).ref == PromptReference("n")
    assert structure(template, CompleteParams).ref == ResourceTemplateReference("u")


def test_elicitation_without_a_mode_is_read_as_a_form_elicitation() -> None:
    form = {"message": "m", "requestedSchema": OBJECT}
    assert structure(form, ElicitParams) == ElicitFormParams("m", OBJECT)
    assert structure(form | {"mode": "form"}, ElicitParams) == ElicitFormParams("m", OBJECT)


def test_elicitation_with_mode_url_is_read_as_a_url_elicitation() -> None:
    data = {"mode": "url", "message": "m", "url": "https://example.org", "elicitationId": "e"}
    assert structure(data, ElicitParams) == ElicitURLParams("m", "https://example.org", "e")


@pytest.mark.parametrize("data", [{"mode": "fax", "message": "m"}, {"mode": None}, [], None, "form"])
def test_elicitation_with_an_unknown_mode_is_refused(data: Any) -> None:
    assert "the elicitation mode must be form or url" in fault(data, ElicitParams)


def test_sampling_message_can_contain_one_content_block_or_a_list() -> None:
    text = {"type": "text", "text": "a"}
    assert structure({"role": "user", "content": text}, SamplingMessage).content == TextContent("a")
    assert structure({"role": "user", "content": [text]}, SamplingMessage).content == [TextContent("a")]


def test_sampling_result_keeps_unknown_fields() -> None:
    data = {
        "role": "assistant",
        "model": "m",
        "content": {"type": "text", "text": "a"},
        "extra": 1,
        "usage": {"n": 2},
    }
    heard = structure(data, CreateMessageResult)
    assert heard.extra == {"extra": 1, "usage": {"n": 2}}
    assert unstructure(heard, FIFTH) == data


def test_task_without_a_ttl_field_is_read_as_never_expiring() -> None:
    """mcp 1.x leaves out the null that says so."""
    data = {"taskId": "t", "status": "working", "createdAt": "now", "lastUpdatedAt": "now"}
    assert structure(data, Task) == Task("t", "working", "now", "now", None)
    with pytest.raises(Exception, match="expected an object"):
        structure(["t"], Task)


def test_result_without_cache_hints_is_treated_as_expired_and_private() -> None:
    heard = structure({"tools": []}, ListToolsResult)
    assert (heard.ttl_ms, heard.cache_scope) == (0, "private")


@pytest.mark.parametrize(
    ("said", "meant"),
    [(-1, 0), ("5", 0), (None, 0), (True, 0), ([], 0), (1500.7, 1500), (-0.5, 0), (10**400, 10**400)],
)
def test_result_with_an_invalid_ttl_is_still_read(said: object, meant: int) -> None:
    for kind in (ListToolsResult, DiscoverResult):
        data = {"tools": [], "supportedVersions": [], "capabilities": {}, "ttlMs": said, "cacheScope": "public"}
        heard = structure(data, kind)
        assert (heard.ttl_ms, heard.cache_scope) == (meant, "public")


@pytest.mark.parametrize("said", ["shared", "PUBLIC", None, 1, {}, True])
def test_unknown_cache_scope_is_read_as_private(said: object) -> None:
    heard = structure({"contents": [], "ttlMs": 5, "cacheScope": said}, ReadResourceResult)
    assert (heard.ttl_ms, heard.cache_scope) == (5, "private")


def test_cacheable_result_that_is_not_an_object_is_refused() -> None:
    assert "expected an object" in fault([], ListToolsResult)


# Writing


@every_revision
def test_message_fields_that_are_none_are_omitted_but_empty_fields_are_written(revision: Revision) -> None:
    assert unstructure(CallToolResult(), revision) == {"content": []}
    assert unstructure(CallToolParams("x", {}), revision) == {"name": "x", "arguments": {}}


@every_revision
def test_log_message_is_written_with_null_data_and_without_a_missing_logger_name(revision: Revision) -> None:
    assert unstructure(LogParams("info", None), revision) == {"level": "info", "data": None}


def test_task_that_never_expires_is_written_with_a_null_ttl() -> None:
    assert unstructure(Task("t", "working", "2026", "2026", None), FOURTH)["ttl"] is None


@every_revision
def test_integers_in_a_progress_notification_stay_integers_when_written(revision: Revision) -> None:
    data = unstructure(ProgressParams("7", 3, 10), revision)
    assert data == {"progressToken": "7", "progress": 3, "total": 10}
    assert type(data["progress"]) is int


def test_progress_message_is_omitted_in_revision_2024_11_05() -> None:
    params = ProgressParams(7, 1, message="halfway")
    assert ["message" in unstructure(params, revision) for revision in ALL] == [False, True, True, True, True]


def test_cache_hints_are_always_written_but_only_in_the_modern_revision() -> None:
    assert unstructure(ListToolsResult([]), FOURTH) == {"tools": []}
    assert unstructure(ListToolsResult([]), FIFTH) == {"tools": [], "ttlMs": 0, "cacheScope": "private"}
    assert unstructure(DiscoverResult([], ServerCapabilities()), FIFTH)["ttlMs"] == 0


def test_implementation_info_is_written_without_fields_that_the_revision_lacks() -> None:
    me = Implementation("n", "1", title="T", description="D", icons=[Icon("i")], website_url="w")
    old = {"name": "n", "version": "1"}
    new = old | {"title": "T", "description": "D", "icons": [{"src": "i"}], "websiteUrl": "w"}
    assert [unstructure(me, revision) for revision in ALL] == [old, old, old | {"title": "T"}, new, new]


def test_capabilities_are_written_without_fields_that_the_revision_lacks() -> None:
    client = ClientCapabilities(
        roots=Roots(list_changed=True), sampling=Sampling(tools={}), elicitation=Elicitation(url={})
    )
    roots = {"listChanged": True}
    new = {"sampling": {"tools": {}}, "elicitation": {"url": {}}}
    assert [unstructure(client, revision) for revision in ALL] == [
        {"roots": roots, "sampling": {}},
        {"roots": roots, "sampling": {}},
        {"roots": roots, "sampling": {}, "elicitation": {}},
        {"roots": roots, **new},
        {"roots": {}, **new},
    ]


def test_enum_members_and_nested_values_are_written_as_plain_json() -> None:
    class Wind(Enum):
        NORTH = "n"

    result = CallToolResult(structured_content={"wind": Wind.NORTH, "seen": [{"from": Wind.NORTH}]})
    assert unstructure(result, FIFTH)["structuredContent"] == {"wind": "n", "seen": [{"from": "n"}]}


@pytest.mark.parametrize("value", [[1, 2], "text", 3, False, 0])
def test_structured_content_that_is_not_an_object_is_written_only_for_modern_clients(value: Any) -> None:
    said = ["structuredContent" in unstructure(CallToolResult(structured_content=value), revision) for revision in ALL]
    assert said == [False, False, False, False, True]


def test_structured_content_object_is_written_since_revision_2025_06_18() -> None:
    result = CallToolResult(structured_content={"a": 1})
    said = ["structuredContent" in unstructure(result, revision) for revision in ALL]
    assert said == [False, False, True, True, True]


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": ["object"]}, {"anyOf": []}, {}])
def test_output_schema_whose_root_is_not_an_object_is_written_only_for_modern_clients(schema: Any) -> None:
    tool = Tool("t", OBJECT, output_schema=schema)
    said = ["outputSchema" in unstructure(tool, revision) for revision in ALL]
    assert said == [False, False, False, False, True]


def test_tool_execution_field_is_written_only_in_revision_2025_11_25() -> None:
    tool = structure({"name": "t", "inputSchema": OBJECT, "execution": {"taskSupport": "optional"}}, Tool)
    said = ["execution" in unstructure(tool, revision) for revision in ALL]
    assert said == [False, False, False, True, False]


def test_resource_link_is_written_as_text_in_revisions_without_links() -> None:
    result = CallToolResult([ResourceLink("Chart", "file:///chart.pdf", title="T")])
    text = {"type": "text", "text": "file:///chart.pdf"}
    link = {"type": "resource_link", "name": "Chart", "uri": "file:///chart.pdf", "title": "T"}
    said = [unstructure(result, revision)["content"] for revision in ALL]
    assert said == [[text], [text], [link], [link], [link]]


# What a revision has no words for at all


def test_audio_content_cannot_be_written_in_revision_2024_11_05() -> None:
    audio = AudioContent("", "audio/ogg")
    for said in (
        audio,
        CallToolResult([audio]),
        PromptMessage("user", audio),
        SamplingMessage("user", audio),
    ):
        with pytest.raises(NotExpressible, match="revision 2024-11-05 can't express content of type 'audio'"):
            unstructure(said, FIRST)
        assert unstructure(said, SECOND)


@pytest.mark.parametrize("revision", ALL[:3], ids=str)
@pytest.mark.parametrize("block", [ToolUseContent("i", "n", {}), ToolResultContent("i")], ids=lambda b: b.type)
def test_sampling_message_with_tool_blocks_cannot_be_written_before_revision_2025_11_25(
    revision: Revision, block: Any
) -> None:
    with pytest.raises(NotExpressible, match="it needs 2025-11-25 or later"):
        unstructure(SamplingMessage("user", block), revision)


@pytest.mark.parametrize("revision", ALL[:3], ids=str)
def test_sampling_message_with_several_blocks_cannot_be_written_before_revision_2025_11_25(revision: Revision) -> None:
    text = TextContent("a")
    for kind in (SamplingMessage("user", [text, text]), CreateMessageResult("user", [text, text], "m")):
        with pytest.raises(NotExpressible, match="exactly one content block"):
            unstructure(kind, revision)


@pytest.mark.parametrize("revision", ALL[:3], ids=str)
def test_sampling_message_with_a_list_of_one_block_is_written_as_one_block_in_old_revisions(revision: Revision) -> None:
    said = unstructure(SamplingMessage("user", [TextContent("a")]), revision)
    assert said == {"role": "user", "content": {"type": "text", "text": "a"}}


@pytest.mark.parametrize("revision", ALL[3:], ids=str)
def test_sampling_message_with_several_blocks_is_written_with_a_list(revision: Revision) -> None:
    said = unstructure(SamplingMessage("user", [TextContent("a"), TextContent("b")]), revision)
    assert [block["text"] for block in said["content"]] == ["a", "b"]


def test_tool_result_in_sampling_needs_an_object_as_structured_content_before_the_modern_revision() -> None:
    block = ToolResultContent("i", structured_content=[1])
    assert "structuredContent" not in unstructure(block, FOURTH)
    assert unstructure(block, FIFTH)["structuredContent"] == [1]
    assert unstructure(ToolResultContent("i", structured_content={"a": 1}), FOURTH)["structuredContent"] == {"a": 1}


def test_url_elicitation_cannot_be_written_before_revision_2025_11_25() -> None:
    with pytest.raises(NotExpressible, match="it needs 2025-11-25 or later"):
        unstructure(ElicitURLParams("m", "https://example.org", "e"), THIRD)


def test_url_elicitation_is_written_with_an_id_only_in_revision_2025_11_25() -> None:
    params = ElicitURLParams("m", "https://example.org", "e")
    wire = {"mode": "url", "message": "m", "url": "https://example.org"}
    assert unstructure(params, FOURTH) == wire | {"elicitationId": "e"}
    assert unstructure(params, FIFTH) == wire
    with pytest.raises(NotExpressible, match="elicitation id"):
        unstructure(ElicitURLParams("m", "https://example.org"), FOURTH)


def test_form_elicitation_is_written_without_the_mode_field() -> None:
    for revision in ALL[2:]:
        assert "mode" not in unstructure(ElicitFormParams("m", {"type": "object", "properties": {}}), revision)


def test_form_with_a_list_of_choices_cannot_be_written_in_revision_2025_06_18() -> None:
    field = {"type": "array", "items": {"type": "string", "enum": ["n"]}}
    params = ElicitFormParams("m", {"type": "object", "properties": {"winds": field}})
    with pytest.raises(NotExpressible, match=r"'winds' is a list of choices.*2025-06-18"):
        unstructure(params, THIRD)
    assert unstructure(params, FOURTH)["requestedSchema"] == params.requested_schema


def test_elicitation_request_of_revision_2025_06_18_has_titles_of_choices_as_enum_names() -> None:
    field = {"type": "string", "oneOf": [{"const": "n", "title": "North"}]}
    params = ElicitFormParams("m", {"type": "object", "properties": {"wind": field}})
    said = unstructure(params, THIRD)["requestedSchema"]["properties"]["wind"]
    assert said == {"type": "string", "enum": ["n"], "enumNames": ["North"]}


def test_elicitation_answer_with_a_list_cannot_be_written_in_revision_2025_06_18() -> None:
    answer = ElicitResult("accept", {"wind": "n", "winds": ["n", "s"]})
    with pytest.raises(NotExpressible, match="'winds' is a list"):
        unstructure(answer, THIRD)
    assert unstructure(answer, FOURTH) == {"action": "accept", "content": {"wind": "n", "winds": ["n", "s"]}}


def test_elicitation_answer_without_content_has_only_an_action() -> None:
    for revision in ALL[2:]:
        assert unstructure(ElicitResult("decline"), revision) == {"action": "decline"}


def test_root_is_written_with_meta_since_revision_2025_06_18() -> None:
    root = Root("file:///harbour", "Harbour", {"a": 1})
    assert unstructure(root, SECOND) == {"uri": "file:///harbour", "name": "Harbour"}
    assert unstructure(root, THIRD)["_meta"] == {"a": 1}


def test_resolved_tool_annotations_have_the_default_of_each_omitted_annotation() -> None:
    hints = ToolAnnotations(read_only_hint=True)
    assert unstructure(hints, FIFTH) == {"readOnlyHint": True}
    assert hints.resolved() == ToolAnnotations(None, True, True, False, True)
    assert ToolAnnotations().resolved() == ToolAnnotations(None, False, True, False, True)
