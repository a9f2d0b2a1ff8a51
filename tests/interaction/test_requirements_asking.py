"""SA, EL, RO and CH: a handler asks its client, over a memory channel."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import attrs
import msgspec
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trio_mcp import (
    CodedError,
    ConnectionLost,
    CreateMessageResult,
    ImageContent,
    Limits,
    ModelHint,
    ModelPreferences,
    PeerError,
    ProtocolViolation,
    RequestContext,
    SamplingMessage,
    Server,
    TextContent,
    Tool,
    ToolChoice,
    ToolResultContent,
    ToolUseContent,
)

from .memory_peer import LATEST_LEGACY, LEGACY, MODERN, MemoryPeer, connected

ALL: dict[str, Any] = {
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {},
}
SAMPLED: dict[str, Any] = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}
TOOL = Tool("t", {"type": "object"}, title="T", description="d", output_schema={"type": "object"})


class Asking:
    """A server whose one tool does what the test says, and the outcome: a value or an exception."""

    def __init__(self) -> None:
        self.server = Server("asking", "1.0.0")
        self.outcome: Any = None
        self.question: Any = None

        @self.server.tool
        async def ask(ctx: RequestContext) -> str:
            try:
                self.outcome = await self.question(ctx)
            except Exception as error:
                self.outcome = error
            return "asked"

    async def refused(self, peer: MemoryPeer, question: Any) -> CodedError:
        """The error of a question that must not reach the wire."""
        self.question = question
        before = len(peer.messages)
        assert await peer.text("ask") == "asked"
        assert len(peer.messages) == before + 1, "nothing was sent"
        assert isinstance(self.outcome, CodedError), self.outcome
        return self.outcome

    async def answered(self, peer: MemoryPeer, question: Any, method: str, result: Any) -> tuple[dict[str, Any], Any]:
        """The parameters of a question on the wire, and its outcome for this result."""
        self.question = question
        call = await peer.start("ask")
        sent = await peer.question(method)
        await peer.answer(sent, result)
        await peer.reply(call)
        return sent.get("params", {}), self.outcome


@pytest.fixture
def asking() -> Asking:
    return Asking()


def sample(**options: Any) -> Any:
    return lambda ctx: ctx.sample("hello", max_tokens=5, **options)


def elicit(form: Any) -> Any:
    return lambda ctx: ctx.elicit("please", form)


FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
QUESTIONS: dict[str, Any] = {
    "sampling": sample(),
    "elicitation": elicit(FORM),
    "elicitation.url": lambda ctx: ctx.elicit_url("go", "https://example.org/", "e"),
    "roots": lambda ctx: ctx.list_roots(),
}


# The gates, in their order (DESIGN ruling 18)


@pytest.mark.parametrize("kind", QUESTIONS)
async def test_sa_02_el_02_ro_04_ch_06_requests_to_a_stateless_server_have_no_way_back(
    autojump_clock: MockClock, asking: Asking, kind: str
) -> None:
    for revision in (LATEST_LEGACY, MODERN):
        for capabilities in (ALL, {}):
            async with connected(asking.server, revision, capabilities, stateless=True) as peer:
                error = await asking.refused(peer, QUESTIONS[kind])
                assert error.code == -32603, "no way back comes before any capability"
                assert "return input-required" in error.message
                assert "serve it statefully" in error.message


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.parametrize("revision", LEGACY)
async def test_sa_03_el_02_ro_03_undeclared_is_refused_with_nothing_sent(
    autojump_clock: MockClock, asking: Asking, kind: str, revision: str
) -> None:
    async with connected(asking.server, revision, {"experimental": {"x": {}}}) as peer:
        error = await asking.refused(peer, QUESTIONS[kind])
        assert error.code == -32600
        assert kind.partition(".")[0] in error.message


async def test_sa_04_tools_need_their_own_capability(autojump_clock: MockClock, asking: Asking) -> None:
    for options in (
        {"tools": [TOOL]},
        {"tools": []},
        {"tool_choice": ToolChoice("none")},
        {"tool_choice": ToolChoice()},
    ):
        async with connected(asking.server, capabilities={"sampling": {}}) as peer:
            error = await asking.refused(peer, sample(**options))
            assert (error.code, "sampling.tools" in error.message) == (-32600, True)
        async with connected(asking.server, capabilities={"sampling": {"tools": {}}}) as peer:
            _, outcome = await asking.answered(peer, sample(**options), "sampling/createMessage", SAMPLED)
            assert isinstance(outcome, CreateMessageResult)


async def test_sa_05_context_of_servers_needs_its_own_capability_and_none_does_not(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async with connected(asking.server, capabilities={"sampling": {}}) as peer:
        for context in ("thisServer", "allServers"):
            error = await asking.refused(peer, sample(include_context=context))
            assert (error.code, "sampling.context" in error.message) == (-32600, True)
        params, _ = await asking.answered(peer, sample(include_context="none"), "sampling/createMessage", SAMPLED)
        assert params["includeContext"] == "none"
    async with connected(asking.server, capabilities={"sampling": {"context": {}}}) as peer:
        params, _ = await asking.answered(peer, sample(include_context="allServers"), "sampling/createMessage", SAMPLED)
        assert params["includeContext"] == "allServers"


async def test_el_03_el_15_bare_elicitation_means_form_only(autojump_clock: MockClock, asking: Asking) -> None:
    async with connected(asking.server, capabilities={"elicitation": {}}) as peer:
        _, answer = await asking.answered(peer, elicit(FORM), "elicitation/create", {"action": "decline"})
        assert answer.action == "decline"
        assert (await asking.refused(peer, QUESTIONS["elicitation.url"])).code == -32600
    async with connected(asking.server, capabilities={"elicitation": {"url": {}}}) as peer:
        assert (await asking.refused(peer, elicit(FORM))).code == -32600


# Sampling on the wire


async def test_sa_06_every_parameter_is_on_the_wire(autojump_clock: MockClock, asking: Asking) -> None:
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


async def test_sa_07_sa_08_messages_hold_one_block_or_many(autojump_clock: MockClock, asking: Asking) -> None:
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


async def test_sa_10_result_is_typed_and_open(autojump_clock: MockClock, asking: Asking) -> None:
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
async def test_sa_14_el_18_ro_05_raw_forms_have_no_gates_and_no_types(
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


async def test_el_06_el_16_form_of_a_class_is_flat_and_names_no_mode(autojump_clock: MockClock, asking: Asking) -> None:
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
        assert answer.content_as(Contact) == Contact("Ada", 36)


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_el_06_el_13_declined_form_has_no_content(autojump_clock: MockClock, asking: Asking, action: str) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        _, answer = await asking.answered(
            peer, elicit(Contact), "elicitation/create", {"action": action, "content": {"name": 7}}
        )
        assert (answer.action, answer.content, answer.content_as(Contact)) == (action, None, None)


@pytest.mark.parametrize(
    "answer",
    [{}, {"action": "maybe"}, {"action": "accept", "content": {"age": 1}}, {"action": "accept", "content": 7}, None],
)
async def test_el_13_answer_that_does_not_fit_is_a_violation(
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


async def test_el_07_to_el_12_every_kind_of_field_reaches_the_wire_as_it_is(
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


async def test_el_04_el_05_what_is_no_flat_form_is_refused_and_the_field_is_named(
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


async def test_el_14_url_must_be_absolute_and_the_id_given(autojump_clock: MockClock, asking: Asking) -> None:
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


async def test_ro_02_ro_05_roots_are_typed(autojump_clock: MockClock, asking: Asking) -> None:
    async with connected(asking.server, capabilities=ALL) as peer:
        answer = {"roots": [{"uri": "file:///a", "name": "A", "_meta": {"k": 1}}, {"uri": "file:///b"}]}
        params, roots = await asking.answered(peer, QUESTIONS["roots"], "roots/list", answer)
        assert params == {}
        assert [(root.uri, root.name, root.meta) for root in roots] == [
            ("file:///a", "A", {"k": 1}),
            ("file:///b", None, None),
        ]


# The channel under it


async def test_ch_04_sv_11_question_blocks_its_own_task_only(autojump_clock: MockClock, asking: Asking) -> None:
    @asking.server.tool
    async def echo(text: str) -> str:
        return text

    async with connected(asking.server, capabilities=ALL) as peer:
        asking.question = QUESTIONS["roots"]
        call = await peer.start("ask")
        assert await peer.text("echo", {"text": "meanwhile"}) == "meanwhile"
        question = await peer.question("roots/list")
        await peer.refuse(question, -32603, "no", {"why": "because"})
        await peer.reply(call)
        assert isinstance(asking.outcome, PeerError)
        assert (asking.outcome.code, asking.outcome.message, asking.outcome.data) == (-32603, "no", {"why": "because"})


async def test_ch_13_ids_of_questions_differ_from_those_in_flight_in_the_other_direction(
    autojump_clock: MockClock, asking: Asking
) -> None:
    @asking.server.tool
    async def wait() -> str:
        await trio.sleep(10)
        return "waited"

    async with connected(asking.server, capabilities=ALL) as peer:
        for number in range(1, 20):
            await peer.start("wait", id=number)
        asking.question = QUESTIONS["roots"]
        call = await peer.start("ask", id=20)
        question = await peer.question("roots/list")
        assert question["id"] not in range(1, 21)
        await peer.answer(question, {"roots": []})
        await peer.reply(call)


async def test_ch_16_end_of_input_fails_every_question_once(autojump_clock: MockClock) -> None:
    server = Server("asking", "1.0.0")
    outcomes: list[Any] = []

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        async def one() -> None:
            try:
                await ctx.list_roots()
            except ConnectionLost as error:
                outcomes.append(error)

        for _ in range(5):
            ctx.nursery.start_soon(one)
        return "asked"

    async with connected(server, capabilities=ALL) as peer:
        await peer.start("ask")
        await peer.close()
        await trio.testing.wait_all_tasks_blocked()
        assert len(outcomes) == 5
        assert len(set(map(id, outcomes))) == 5, "an exception for each, so that tracebacks do not mix"


async def test_ch_17_time_limit_of_a_question_is_trios_own_and_sends_one_cancel(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async def impatient(ctx: RequestContext) -> Any:
        with trio.fail_after(3):
            await ctx.list_roots()

    async with connected(asking.server, capabilities=ALL) as peer:
        asking.question = impatient
        call = await peer.start("ask")
        question = await peer.question("roots/list")
        cancel = await peer.notification("notifications/cancelled")
        assert cancel["requestId"] == question["id"]
        assert "deadline" in cancel["reason"]
        await peer.answer(question, {"roots": []})  # late, and ignored
        assert "result" in await peer.reply(call)
        assert isinstance(asking.outcome, trio.TooSlowError)
        assert await peer.everything() == []


async def test_ch_14_ch_15_overlong_and_broken_lines_cost_one_error_each(autojump_clock: MockClock) -> None:
    """The framing itself is tested over pipes; here is what the connection makes of it."""
    server = Server("lines", "1.0.0", limits=Limits(max_message_bytes=100))
    assert server.limits.max_message_bytes == 100
    async with connected(server) as peer:
        await peer.send(b"{bad")
        await peer.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode())
        codes = [m.get("error", {}).get("code") for m in await peer.everything()]
        assert codes == [-32700, None]


async def test_ch_18_notifications_keep_their_order_with_requests(autojump_clock: MockClock, asking: Asking) -> None:
    async def question(ctx: RequestContext) -> Any:
        await ctx.log.error("before")
        roots = await ctx.list_roots()
        await ctx.log.error("after")
        return roots

    async with connected(asking.server, LATEST_LEGACY, ALL) as peer:
        await asking.answered(peer, question, "roots/list", {"roots": []})
        kinds = [m.get("method", "reply") for m in peer.messages[1:]]
        assert kinds == ["notifications/message", "roots/list", "notifications/message", "reply"]


async def test_an_answer_that_is_not_json_fails_the_question_and_is_not_answered(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def where(ctx: RequestContext) -> str:
        try:
            await ctx.list_roots()
        except ProtocolViolation as error:
            return str(error)
        return "an answer"

    async with connected(server, LATEST_LEGACY, ALL) as peer:
        call = await peer.start("where")
        question = await peer.question("roots/list")
        await peer.send(b'{"jsonrpc":"2.0","id":%d,"result":{"roots":[{"uri":"\\ud800"}]}}' % question["id"])
        text = (await peer.reply(call))["result"]["content"][0]["text"]
        assert text.startswith("roots/list: the answer cannot be read: not JSON")
        assert await peer.everything() == []
