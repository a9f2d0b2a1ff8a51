"""What an elicitation handler fills in is checked against the form before it goes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.client.rounds import RoundsPeer, asking, rounds_of
from tests.interaction.client.raw import text_of

from trio_mcp import Client
from trio_mcp.testing import ScriptedServer, open_scripted_server
from trio_mcp.types import ElicitFormParams, ElicitResult

SHIRT = {
    "type": "object",
    "properties": {"colour": {"type": "string"}, "size": {"type": "integer", "default": 40}},
    "required": ["colour", "size"],
}
COLOUR = {"colour": {"type": "string"}}
NO_FORMS = [
    # Nothing that the specification allows, and something with which a validator might never come to an end.
    {"type": "object", "properties": {"colour": {"$ref": "#/properties/colour"}}},
    {"type": "object", "properties": COLOUR, "$schema": "https://example.com/unknown"},
    # A schema that takes long to compile.
    {"type": "object", "properties": COLOUR | {str(number): {"type": "boolean"} for number in range(20_000)}},
]


def question(form: dict[str, Any]) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": "Which shirt?", "requestedSchema": form}}


def answering(answer: Any) -> Callable[[ElicitFormParams], Awaitable[Any]]:
    async def handler(_: ElicitFormParams) -> Any:
        return answer

    return handler


def asking_once(form: dict[str, Any], answer: Any) -> AbstractAsyncContextManager[tuple[Client, RoundsPeer]]:
    """A client of a modern server that asks with ``form``, and whose handler returns ``answer``."""

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), shirt=question(form))
        await peer.text(await peer.call())

    return asking(script, elicitation=answering(answer))


async def answer_of(form: dict[str, Any], answer: Any) -> Any:
    """What the server gets."""
    async with asking_once(form, answer) as (client, peer):
        assert text_of(await client.call_tool("order")) == "done"
    return rounds_of(peer)[-1]["inputResponses"]["shirt"]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [({}, '"colour" is a required property'), ({"colour": 3}, '3 is not of type "string" at colour')],
    ids=["missing", "of another type"],
)
async def test_form_answer_that_violates_its_schema_raises_value_error(
    autojump_clock: object, answer: Any, fault: str
) -> None:
    async with asking_once(SHIRT, answer) as (client, _):
        with pytest.raises(
            ValueError, match=f"the filled-in form doesn't match the schema that the server sent: {fault}"
        ):
            await client.call_tool("order")
        assert text_of(await client.call_tool("order")) == "done"


async def test_legacy_server_gets_an_error_for_a_form_answer_that_violates_its_schema(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept("2025-11-25")
        call = await server.expect_call("order")
        await server.request(5, "elicitation/create", question(SHIRT)["params"])
        await server.expect({"id": 5, "error": {"code": -32603, "message": "Internal error"}, ...: ...})
        await server.answer_text(call, "no shirt")

    async with open_scripted_server(script, elicitation=answering({"colour": 3})) as client:
        assert text_of(await client.call_tool("order")) == "no shirt"
    assert "doesn't match the schema that the server sent" in caplog.text


async def test_missing_form_fields_are_filled_in_with_their_defaults(autojump_clock: object) -> None:
    assert await answer_of(SHIRT, {"colour": "red"}) == {"action": "accept", "content": {"colour": "red", "size": 40}}


OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("field", "answer", "content"),
    [
        ({"type": "string", "enum": ["a"], "default": "zz"}, {}, {}),
        ({"type": "string", "format": "email", "default": "nobody"}, {}, {}),
        ({"type": "integer", "maximum": 3, "default": 4}, {}, {}),
        ({"type": "string", "default": None}, {}, {}),
        (OPTIONAL | {"default": None}, {}, {}),
        (OPTIONAL | {"default": 7}, {}, {}),
        (OPTIONAL | {"default": "x"}, {}, {"nick": "x"}),
        (OPTIONAL | {"default": "x"}, {"nick": None}, {}),
        (OPTIONAL, {"nick": "y"}, {"nick": "y"}),
        ({"type": ["string", "null"], "default": None}, {"nick": None}, {}),
    ],
)
async def test_form_answer_omits_a_null_or_default_that_violates_the_schema_of_an_optional_field(
    autojump_clock: object, field: Any, answer: Any, content: Any
) -> None:
    form = {"type": "object", "properties": {"name": {"type": "string"}, "nick": field}, "required": ["name"]}
    given = await answer_of(form, {"name": "a", **answer})
    assert given == {"action": "accept", "content": {"name": "a", **content}}


@pytest.mark.parametrize(
    ("nick", "answer", "given"),
    [
        (OPTIONAL, {}, None),
        (OPTIONAL, {"nick": None}, None),
        (OPTIONAL, {"nick": "b"}, "b"),
        (OPTIONAL | {"default": "c"}, {}, "c"),
        ({"type": ["null", "integer"]}, {}, None),
        ({"oneOf": [{"$ref": "#/$defs/Nick"}, {"type": "null"}]}, {}, None),
        ({"anyOf": [{"type": ["string", "null"]}, {"type": "integer"}]}, {}, None),
        *[(odd, {}, ...) for odd in ({"anyOf": "null"}, {"anyOf": [None, "null"]}, {"type": {"null": 1}}, [], None)],
    ],
)
async def test_form_answer_contains_null_for_a_required_nullable_field_without_a_value(
    autojump_clock: object, nick: Any, answer: Any, given: Any
) -> None:
    fields = {"name": {"type": "string"}, "nick": nick}
    form = {"type": "object", "properties": fields, "required": ["name", "nick", "other", 7]}
    expected = {"name": "a"} | ({} if given is ... else {"nick": given})
    assert await answer_of(form, {"name": "a", **answer}) == {"action": "accept", "content": expected}


async def test_declined_elicitation_form_needs_no_field_values(autojump_clock: object) -> None:
    assert await answer_of(SHIRT, ElicitResult("decline")) == {"action": "decline"}


@pytest.mark.parametrize("form", NO_FORMS, ids=["of references", "in an unknown dialect", "for nobody"])
async def test_client_does_not_validate_a_form_answer_against_an_invalid_schema(
    autojump_clock: object, form: Any
) -> None:
    assert await answer_of(form, {"colour": 3}) == {"action": "accept", "content": {"colour": 3}}
