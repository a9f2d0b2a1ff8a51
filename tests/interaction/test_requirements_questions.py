"""SA, EL and RO: sampling, elicitation and roots requests as sent, over a memory channel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import attrs
import msgspec
import pytest
from trio.testing import MockClock

from trio_mcp import ProtocolViolation, RequestContext
from trio_mcp.types import (
    CreateMessageResult,
    ImageContent,
    ModelHint,
    ModelPreferences,
    SamplingMessage,
    TextContent,
    ToolChoice,
    ToolResultContent,
    ToolUseContent,
)

from .asking import ALL, QUESTIONS, SAMPLED, TOOL, Asking, elicit, sample
from .memory_peer import connected


@pytest.fixture
def asking() -> Asking:
    return Asking()


# Sampling on the wire


async def test_sa_06_every_sampling_parameter_is_sent(autojump_clock: MockClock, asking: Asking) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        question = sample(
            system_prompt="be nice",
            model_preferences=ModelPreferences(
                hints=[ModelHint("small")], cost_priority=0.1, speed_priority=0.2, intelligence_priority=1
            ),
            temperature=0.7,
            stop_sequences=["END"],
            include_context="thisServer",
            metadata={"k": "v"},
            tools=[TOOL],
            tool_choice=ToolChoice("required"),
        )
        params, _ = await asking.answered(peer, question, "sampling/createMessage", SAMPLED)
        assert params == {
            "messages": [{"role": "user", "content": {"type": "text", "text": "hello"}}],
            "maxTokens": 5,
            "systemPrompt": "be nice",
            "modelPreferences": {
                "hints": [{"name": "small"}],
                "costPriority": 0.1,
                "speedPriority": 0.2,
                "intelligencePriority": 1,
            },
            "temperature": 0.7,
            "stopSequences": ["END"],
            "includeContext": "thisServer",
            "metadata": {"k": "v"},
            "tools": [
                {
                    "name": "t",
                    "title": "T",
                    "description": "d",
                    "inputSchema": {"type": "object"},
                    "outputSchema": {"type": "object"},
                }
            ],
            "toolChoice": {"mode": "required"},
        }


async def test_sa_07_sa_08_sampling_messages_can_contain_one_or_many_content_blocks(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        messages = [
            SamplingMessage("user", ImageContent("aGk=", "image/png")),
            SamplingMessage("assistant", [TextContent("let me see"), ToolUseContent("u1", "t", {"a": 1})]),
            SamplingMessage("user", [ToolResultContent("u1", [TextContent("42")], is_error=False)]),
        ]

        async def question(ctx: RequestContext) -> Any:
            return await ctx.sample(messages, max_tokens=5)

        params, _ = await asking.answered(peer, question, "sampling/createMessage", SAMPLED)
        first, second, third = params["messages"]
        assert first == {"role": "user", "content": {"type": "image", "data": "aGk=", "mimeType": "image/png"}}
        assert [block["type"] for block in second["content"]] == ["text", "tool_use"]
        assert second["content"][1] == {"type": "tool_use", "id": "u1", "name": "t", "input": {"a": 1}}
        assert third["content"][0]["toolUseId"] == "u1"


async def test_sa_10_sampling_result_is_typed_and_accepts_unknown_values(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        answer = {
            **SAMPLED,
            "content": [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "u", "name": "t", "input": {}}],
            "stopReason": "something nobody has heard of",
            "vendorKey": 1,
            "_meta": {"k": "v"},
        }
        _, result = await asking.answered(peer, sample(), "sampling/createMessage", answer)
        assert isinstance(result, CreateMessageResult)
        assert [type(block) for block in result.content] == [TextContent, ToolUseContent]  # type: ignore[union-attr]
        assert result.stop_reason == "something nobody has heard of"
        assert result.meta == {"k": "v"}


@pytest.mark.parametrize(
    ("raw", "method"),
    [
        (lambda ctx: ctx.sample_raw({"messages": [], "maxTokens": 1, "own": 1}), "sampling/createMessage"),
        (lambda ctx: ctx.elicit_raw({"message": "m", "requestedSchema": {}, "own": 1}), "elicitation/create"),
        (lambda ctx: ctx.list_roots_raw(), "roots/list"),
    ],
)
async def test_sa_14_el_18_ro_05_raw_requests_to_a_client_skip_capability_checks_and_decoding(
    autojump_clock: MockClock, asking: Asking, raw: Any, method: str
) -> None:
    async with connected(asking.server) as peer:
        _, outcome = await asking.answered(peer, raw, method, {"any": ["thing", 1]})
        assert outcome == {"any": ["thing", 1]}


# Elicitation on the wire


@attrs.frozen
class Contact:
    """A form."""

    name: Annotated[str, msgspec.Meta(min_length=2, description="Your name")]
    age: int = 0
    colour: Literal["red", "green"] = "red"
    subscribe: bool = False
    weight: float | None = None


async def test_el_06_el_16_elicitation_form_made_from_a_class_is_flat_and_has_no_mode_field(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        accepted = {"action": "accept", "content": {"name": "Ada", "age": 36}}
        params, answer = await asking.answered(peer, elicit(Contact), "elicitation/create", accepted)
        assert set(params) == {"message", "requestedSchema"}
        schema = params["requestedSchema"]
        assert schema["type"] == "object"
        assert schema["required"] == ["name"]
        assert schema["properties"]["name"] == {"type": "string", "minLength": 2, "description": "Your name"}
        assert schema["properties"]["age"] == {"type": "integer", "default": 0}
        assert schema["properties"]["subscribe"] == {"type": "boolean", "default": False}
        assert schema["properties"]["weight"]["type"] == "number"
        assert sorted(schema["properties"]["colour"]["enum"]) == ["green", "red"]
        assert answer.as_(Contact) == Contact("Ada", 36)


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_el_06_el_13_declined_elicitation_has_no_content(
    autojump_clock: MockClock, asking: Asking, action: str
) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        _, answer = await asking.answered(
            peer, elicit(Contact), "elicitation/create", {"action": action, "content": {"name": 7}}
        )
        assert (answer.action, answer.content, answer.as_(Contact)) == (action, None, None)


@pytest.mark.parametrize(
    "answer",
    [{}, {"action": "maybe"}, {"action": "accept", "content": {"age": 1}}, {"action": "accept", "content": 7}, None],
)
async def test_el_13_invalid_elicitation_answer_raises_protocol_violation(
    autojump_clock: MockClock, asking: Asking, answer: Any
) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        _, outcome = await asking.answered(peer, elicit(Contact), "elicitation/create", answer)
        assert isinstance(outcome, ProtocolViolation), outcome


FLAT: dict[str, dict[str, Any]] = {
    "string": {
        "type": "string",
        "format": "email",
        "minLength": 1,
        "maxLength": 9,
        "default": "a@b",
        "title": "T",
        "description": "D",
    },
    "date": {"type": "string", "format": "date-time"},
    "number": {"type": "number", "minimum": 0, "maximum": 1.5, "default": 0.5},
    "integer": {"type": "integer", "minimum": 0, "maximum": 9, "default": 3},
    "boolean": {"type": "boolean", "default": True},
    "old enum": {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
    "enum": {"type": "string", "enum": ["a", "b"], "default": "a"},
    "titled": {"type": "string", "oneOf": [{"const": "a", "title": "A"}]},
    "many": {
        "type": "array",
        "items": {"type": "string", "enum": ["a", "b"]},
        "minItems": 1,
        "maxItems": 2,
        "default": ["a"],
    },
    "titled many": {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}},
}


async def test_el_07_to_el_12_every_kind_of_form_field_is_sent_unchanged(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        form = {"type": "object", "properties": FLAT, "required": ["many"]}
        accepted = {"action": "accept", "content": {"many": ["a"], "number": 1, "boolean": False, "string": "x@y"}}
        params, answer = await asking.answered(peer, elicit(form), "elicitation/create", accepted)
        assert params["requestedSchema"] == form
        assert answer.content == accepted["content"]


@attrs.frozen
class Inner:
    """No field of a form."""

    x: int


@attrs.frozen
class Nested:
    """No form."""

    inner: Inner


NO_FORMS: list[tuple[Any, str]] = [
    ({"type": "string"}, "object"),
    ({}, "object"),
    ({"type": "object"}, "properties"),
    ({"type": "object", "properties": {"nested": {"type": "object", "properties": {}}}}, "nested"),
    ({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "string"}}}}, "list"),
    ({"type": "object", "properties": {"ref": {"$ref": "#/x"}}}, "ref"),
]


async def test_el_04_el_05_form_that_is_not_flat_raises_and_names_the_field(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        for form, named in [*NO_FORMS, (Nested, "inner")]:
            error = await asking.refused(peer, elicit(form))
            assert error.code == -32602, form
            assert named in error.message, error.message


URLS = [
    "",
    "relative",
    "/path",
    "//host/x",
    "ftp://host/x",
    "file:///etc",
    "javascript:alert(1)",
    "http://",
    "https:///x",
]


async def test_el_14_elicitation_with_a_relative_url_or_empty_id_raises(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        for url in URLS:
            error = await asking.refused(peer, lambda ctx, url=url: ctx.elicit_url("go", url, "e"))
            assert error.code == -32602, url
        error = await asking.refused(peer, lambda ctx: ctx.elicit_url("go", "https://example.org/", ""))
        assert error.code == -32602
        params, answer = await asking.answered(
            peer, QUESTIONS["elicitation.url"], "elicitation/create", {"action": "accept"}
        )
        assert params == {"mode": "url", "message": "go", "url": "https://example.org/", "elicitationId": "e"}
        assert (answer.action, answer.content) == ("accept", None)


# Roots


async def test_ro_02_ro_05_list_roots_returns_typed_roots(autojump_clock: MockClock, asking: Asking) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        answer = {"roots": [{"uri": "file:///a", "name": "A", "_meta": {"k": 1}}, {"uri": "file:///b"}]}
        params, roots = await asking.answered(peer, QUESTIONS["roots"], "roots/list", answer)
        assert params == {}
        assert [(root.uri, root.name, root.meta) for root in roots] == [
            ("file:///a", "A", {"k": 1}),
            ("file:///b", None, None),
        ]
