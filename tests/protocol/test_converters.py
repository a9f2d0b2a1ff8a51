"""Objects to plain data and back: strict when reading, and per revision when writing (SV-01)."""

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
from trio_mcp.protocol.types.prompts import (
    CompleteParams,
    GetPromptParams,
    PromptMessage,
    PromptReference,
    ResourceTemplateReference,
)
from trio_mcp.protocol.types.resources import ListResourcesResult, PageParams, ReadResourceResult, Resource
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


def test_faults_of_large_data_are_not_all_collected() -> None:
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
        (PromptMessage, {"role": "user", "content": {}}, "as its type @ $.content"),
        (PromptMessage, {"role": "user", "content": {"type": []}}, "as its type @ $.content"),
        (PromptMessage, {"role": "user", "content": {"type": "video"}}, "as its type @ $.content"),
        (PromptMessage, {"role": "user", "content": {"type": "text"}}, "missing 'text' @ $.content"),
        (EmbeddedResource, {"resource": {"uri": "u"}}, "expected text or blob @ $.resource"),
        (EmbeddedResource, {"resource": 3}, "expected an object @ $.resource"),
        (ElicitResult, {"action": "maybe"}, "expected one of accept, decline, cancel @ $.action"),
        (ElicitResult, {"action": "accept", "content": {"a": {}}}, "strings, numbers, booleans"),
        (Task, {"taskId": "t"}, "missing 'createdAt'"),
        (InputRequest, {"method": "tools/call"}, "expected one of sampling/createMessage"),
        (InputRequiredResult, {"inputRequests": []}, "expected an object @ $.inputRequests"),
    ],
)
def test_a_fault_is_named_with_its_place(kind: Any, data: Any, words: str) -> None:
    assert words in fault(data, kind)


def test_all_faults_are_named_at_once() -> None:
    words = fault({"protocolVersion": 1, "capabilities": {"roots": 3}}, InitializeParams)
    assert "$.protocolVersion" in words
    assert "$.capabilities.roots" in words
    assert "missing 'clientInfo'" in words


def test_faulty_parameters_are_an_error_for_the_peer() -> None:
    with pytest.raises(CodedError, match=r"Invalid params: missing 'name'") as caught:
        structure_params({}, CallToolParams, LATEST_LEGACY)
    assert caught.value.code == INVALID_PARAMS


NOT_YET = {"task": 3, "inputResponses": [], "requestState": {}}


@every_revision
def test_a_member_that_a_revision_does_not_have_is_ignored(revision: Revision) -> None:
    had = {"2025-11-25": {"task"}, "2026-07-28": {"inputResponses", "requestState"}}.get(revision.name, set())
    for name, nonsense in NOT_YET.items():
        if name in had:
            with pytest.raises(CodedError, match=name):
                structure_params({"name": "echo", name: nonsense}, CallToolParams, revision)
        else:
            params = structure_params({"name": "echo", name: nonsense}, CallToolParams, revision)
            assert params == CallToolParams("echo")


def test_a_member_inside_of_another_that_a_revision_does_not_have_is_ignored() -> None:
    opening = {
        "protocolVersion": "2024-11-05",
        "capabilities": {"roots": {}, "tasks": True, "elicitation": 3},
        "clientInfo": {"name": "c", "version": "1", "icons": "none"},
    }
    old = structure_params(opening, InitializeParams, REVISIONS["2024-11-05"])
    assert (old.capabilities, old.client_info) == (ClientCapabilities(roots=Roots()), Implementation("c", "1"))
    with pytest.raises(ValueError, match=r"\$\.capabilities\.tasks"):
        structure(opening, InitializeParams)


def test_absent_parameters_are_empty_parameters() -> None:
    assert structure_params(None, PageParams, LATEST_LEGACY) == PageParams()


def test_an_integer_is_a_number_and_stays_an_integer() -> None:
    heard = structure({"progressToken": 1, "progress": 3, "total": 4.0}, ProgressParams)
    assert [type(heard.progress), type(heard.total)] == [int, float]
    assert type(structure({"priority": 1}, Annotations).priority) is int


def test_a_number_without_a_fraction_is_an_integer() -> None:
    params = structure({"messages": [], "maxTokens": 5.0}, CreateMessageParams)
    assert (params.max_tokens, type(params.max_tokens)) == (5, int)
    with pytest.raises(ValueError, match="expected an integer"):
        structure({"messages": [], "maxTokens": 5.5}, CreateMessageParams)


def test_null_counts_as_absent_where_a_member_is_optional() -> None:
    assert structure({"cursor": None}, PageParams) == PageParams()


def test_meta_is_kept_verbatim() -> None:
    meta = {"x/y": [None, {"z": 1}], "progressToken": 0}
    assert structure({"type": "text", "text": "a", "_meta": meta}, TextContent).meta == meta


def test_content_is_told_apart_by_its_type() -> None:
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


def test_resource_contents_are_told_apart_by_text_and_blob() -> None:
    assert structure({"uri": "u", "text": ""}, ResourceContents) == TextResourceContents("u", "")
    assert structure({"uri": "u", "blob": ""}, ResourceContents) == BlobResourceContents("u", "")


def test_references_are_told_apart_by_their_type() -> None:
    argument = {"name": "port", "value": "Br"}
    prompt = {"ref": {"type": "ref/prompt", "name": "n"}, "argument": argument}
    template = {"ref": {"type": "ref/resource", "uri": "u"}, "argument": argument}
    assert structure(prompt, CompleteParams).ref == PromptReference("n")
    assert structure(template, CompleteParams).ref == ResourceTemplateReference("u")


def test_elicitation_without_a_mode_is_a_form() -> None:
    form = {"message": "m", "requestedSchema": OBJECT}
    assert structure(form, ElicitParams) == ElicitFormParams("m", OBJECT)
    assert structure(form | {"mode": "form"}, ElicitParams) == ElicitFormParams("m", OBJECT)


def test_elicitation_with_a_mode_of_url_is_a_url() -> None:
    data = {"mode": "url", "message": "m", "url": "https://example.org", "elicitationId": "e"}
    assert structure(data, ElicitParams) == ElicitURLParams("m", "https://example.org", "e")


@pytest.mark.parametrize("data", [{"mode": "fax", "message": "m"}, {"mode": None}, [], None, "form"])
def test_elicitation_of_another_mode_is_refused(data: Any) -> None:
    assert "the mode must be form or url" in fault(data, ElicitParams)


def test_a_message_of_sampling_holds_one_block_or_several() -> None:
    text = {"type": "text", "text": "a"}
    assert structure({"role": "user", "content": text}, SamplingMessage).content == TextContent("a")
    assert structure({"role": "user", "content": [text]}, SamplingMessage).content == [TextContent("a")]


def test_a_sampled_message_keeps_members_nobody_knows() -> None:
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


def test_a_task_without_a_time_to_live_is_for_ever() -> None:
    """mcp 1.x leaves out the null that says so."""
    data = {"taskId": "t", "status": "working", "createdAt": "now", "lastUpdatedAt": "now"}
    assert structure(data, Task) == Task("t", "working", "now", "now", None)
    with pytest.raises(Exception, match="expected an object"):
        structure(["t"], Task)


def test_an_absent_freshness_means_stale_and_private() -> None:
    heard = structure({"tools": []}, ListToolsResult)
    assert (heard.ttl_ms, heard.cache_scope) == (0, "private")


@pytest.mark.parametrize(
    ("said", "meant"),
    [(-1, 0), ("5", 0), (None, 0), (True, 0), ([], 0), (1500.7, 1500), (-0.5, 0), (10**400, 10**400)],
)
def test_a_freshness_that_makes_no_sense_spoils_no_result(said: object, meant: int) -> None:
    for kind in (ListToolsResult, DiscoverResult):
        data = {"tools": [], "supportedVersions": [], "capabilities": {}, "ttlMs": said, "cacheScope": "public"}
        heard = structure(data, kind)
        assert (heard.ttl_ms, heard.cache_scope) == (meant, "public")


@pytest.mark.parametrize("said", ["shared", "PUBLIC", None, 1, {}, True])
def test_an_unknown_cache_scope_is_taken_for_private(said: object) -> None:
    heard = structure({"contents": [], "ttlMs": 5, "cacheScope": said}, ReadResourceResult)
    assert (heard.ttl_ms, heard.cache_scope) == (5, "private")


def test_a_result_with_hints_is_an_object_like_any_other() -> None:
    assert "expected an object" in fault([], ListToolsResult)


# Writing


@every_revision
def test_what_is_none_is_left_out_and_what_is_empty_is_written(revision: Revision) -> None:
    assert unstructure(CallToolResult(), revision) == {"content": []}
    assert unstructure(CallToolParams("x", {}), revision) == {"name": "x", "arguments": {}}


@every_revision
def test_null_data_of_a_log_message_is_written_and_an_absent_logger_is_not(revision: Revision) -> None:
    assert unstructure(LogParams("info", None), revision) == {"level": "info", "data": None}


def test_a_task_kept_for_ever_says_so() -> None:
    assert unstructure(Task("t", "working", "2026", "2026", None), FOURTH)["ttl"] is None


@every_revision
def test_integers_of_progress_stay_integers(revision: Revision) -> None:
    data = unstructure(ProgressParams("7", 3, 10), revision)
    assert data == {"progressToken": "7", "progress": 3, "total": 10}
    assert type(data["progress"]) is int


def test_a_progress_message_is_dropped_where_there_is_none() -> None:
    params = ProgressParams(7, 1, message="halfway")
    assert ["message" in unstructure(params, revision) for revision in ALL] == [False, True, True, True, True]


def test_freshness_is_written_to_modern_clients_only_and_then_always() -> None:
    assert unstructure(ListToolsResult([]), FOURTH) == {"tools": []}
    assert unstructure(ListToolsResult([]), FIFTH) == {"tools": [], "ttlMs": 0, "cacheScope": "private"}
    assert unstructure(DiscoverResult([], ServerCapabilities()), FIFTH)["ttlMs"] == 0


def test_an_implementation_says_what_its_revision_knows() -> None:
    me = Implementation("n", "1", title="T", description="D", icons=[Icon("i")], website_url="w")
    old = {"name": "n", "version": "1"}
    new = old | {"title": "T", "description": "D", "icons": [{"src": "i"}], "websiteUrl": "w"}
    assert [unstructure(me, revision) for revision in ALL] == [old, old, old | {"title": "T"}, new, new]


def test_capabilities_say_what_their_revision_knows() -> None:
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


def test_enum_members_and_nested_objects_become_plain_data() -> None:
    class Wind(Enum):
        NORTH = "n"

    result = CallToolResult(structured_content={"wind": Wind.NORTH, "seen": [{"from": Wind.NORTH}]})
    assert unstructure(result, FIFTH)["structuredContent"] == {"wind": "n", "seen": [{"from": "n"}]}


@pytest.mark.parametrize("value", [[1, 2], "text", 3, False, 0])
def test_structured_content_that_is_no_object_goes_to_modern_clients_only(value: Any) -> None:
    said = ["structuredContent" in unstructure(CallToolResult(structured_content=value), revision) for revision in ALL]
    assert said == [False, False, False, False, True]


def test_structured_content_that_is_an_object_goes_where_there_is_any() -> None:
    result = CallToolResult(structured_content={"a": 1})
    said = ["structuredContent" in unstructure(result, revision) for revision in ALL]
    assert said == [False, False, True, True, True]


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": ["object"]}, {"anyOf": []}, {}])
def test_an_output_schema_without_an_object_at_its_root_goes_to_modern_clients_only(schema: Any) -> None:
    tool = Tool("t", OBJECT, output_schema=schema)
    said = ["outputSchema" in unstructure(tool, revision) for revision in ALL]
    assert said == [False, False, False, False, True]


def test_how_a_tool_runs_as_a_task_is_said_in_one_revision() -> None:
    tool = structure({"name": "t", "inputSchema": OBJECT, "execution": {"taskSupport": "optional"}}, Tool)
    said = ["execution" in unstructure(tool, revision) for revision in ALL]
    assert said == [False, False, False, True, False]


def test_a_link_goes_as_text_where_there_are_no_links() -> None:
    result = CallToolResult([ResourceLink("Chart", "file:///chart.pdf", title="T")])
    text = {"type": "text", "text": "file:///chart.pdf"}
    link = {"type": "resource_link", "name": "Chart", "uri": "file:///chart.pdf", "title": "T"}
    said = [unstructure(result, revision)["content"] for revision in ALL]
    assert said == [[text], [text], [link], [link], [link]]


# What a revision has no words for at all


def test_audio_cannot_be_said_in_the_first_revision() -> None:
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
def test_tools_cannot_be_sampled_before_their_revision(revision: Revision, block: Any) -> None:
    with pytest.raises(NotExpressible, match="it needs 2025-11-25 or later"):
        unstructure(SamplingMessage("user", block), revision)


@pytest.mark.parametrize("revision", ALL[:3], ids=str)
def test_several_blocks_cannot_be_said_in_one_message_before_their_revision(revision: Revision) -> None:
    text = TextContent("a")
    for kind in (SamplingMessage("user", [text, text]), CreateMessageResult("user", [text, text], "m")):
        with pytest.raises(NotExpressible, match="exactly one content block"):
            unstructure(kind, revision)


@pytest.mark.parametrize("revision", ALL[:3], ids=str)
def test_a_list_of_one_block_goes_as_that_block(revision: Revision) -> None:
    said = unstructure(SamplingMessage("user", [TextContent("a")]), revision)
    assert said == {"role": "user", "content": {"type": "text", "text": "a"}}


@pytest.mark.parametrize("revision", ALL[3:], ids=str)
def test_several_blocks_go_as_a_list(revision: Revision) -> None:
    said = unstructure(SamplingMessage("user", [TextContent("a"), TextContent("b")]), revision)
    assert [block["text"] for block in said["content"]] == ["a", "b"]


def test_the_structured_result_of_a_sampled_tool_is_an_object_until_the_modern_revision() -> None:
    block = ToolResultContent("i", structured_content=[1])
    assert "structuredContent" not in unstructure(block, FOURTH)
    assert unstructure(block, FIFTH)["structuredContent"] == [1]
    assert unstructure(ToolResultContent("i", structured_content={"a": 1}), FOURTH)["structuredContent"] == {"a": 1}


def test_a_url_cannot_be_elicited_before_its_revision() -> None:
    with pytest.raises(NotExpressible, match="it needs 2025-11-25 or later"):
        unstructure(ElicitURLParams("m", "https://example.org", "e"), THIRD)


def test_a_url_is_elicited_with_an_id_in_one_revision_and_without_afterwards() -> None:
    params = ElicitURLParams("m", "https://example.org", "e")
    wire = {"mode": "url", "message": "m", "url": "https://example.org"}
    assert unstructure(params, FOURTH) == wire | {"elicitationId": "e"}
    assert unstructure(params, FIFTH) == wire
    with pytest.raises(NotExpressible, match="elicitation id"):
        unstructure(ElicitURLParams("m", "https://example.org"), FOURTH)


def test_a_form_says_no_mode() -> None:
    for revision in ALL[2:]:
        assert "mode" not in unstructure(ElicitFormParams("m", {"type": "object", "properties": {}}), revision)


def test_a_form_with_a_list_of_choices_cannot_be_said_in_the_first_revision_of_forms() -> None:
    field = {"type": "array", "items": {"type": "string", "enum": ["n"]}}
    params = ElicitFormParams("m", {"type": "object", "properties": {"winds": field}})
    with pytest.raises(NotExpressible, match=r"'winds' is a list of choices.*2025-06-18"):
        unstructure(params, THIRD)
    assert unstructure(params, FOURTH)["requestedSchema"] == params.requested_schema


def test_titled_choices_go_the_old_way_in_the_first_revision_of_forms() -> None:
    field = {"type": "string", "oneOf": [{"const": "n", "title": "North"}]}
    params = ElicitFormParams("m", {"type": "object", "properties": {"wind": field}})
    said = unstructure(params, THIRD)["requestedSchema"]["properties"]["wind"]
    assert said == {"type": "string", "enum": ["n"], "enumNames": ["North"]}


def test_an_answer_with_a_list_cannot_be_said_in_the_first_revision_of_forms() -> None:
    answer = ElicitResult("accept", {"wind": "n", "winds": ["n", "s"]})
    with pytest.raises(NotExpressible, match="'winds' is a list"):
        unstructure(answer, THIRD)
    assert unstructure(answer, FOURTH) == {"action": "accept", "content": {"wind": "n", "winds": ["n", "s"]}}


def test_an_answer_without_content_says_its_action_alone() -> None:
    for revision in ALL[2:]:
        assert unstructure(ElicitResult("decline"), revision) == {"action": "decline"}


def test_a_root_has_a_name_and_later_meta() -> None:
    root = Root("file:///harbour", "Harbour", {"a": 1})
    assert unstructure(root, SECOND) == {"uri": "file:///harbour", "name": "Harbour"}
    assert unstructure(root, THIRD)["_meta"] == {"a": 1}


def test_hints_are_written_as_given_and_resolved_on_request() -> None:
    hints = ToolAnnotations(read_only_hint=True)
    assert unstructure(hints, FIFTH) == {"readOnlyHint": True}
    assert hints.resolved() == ToolAnnotations(None, True, True, False, True)
    assert ToolAnnotations().resolved() == ToolAnnotations(None, False, True, False, True)
