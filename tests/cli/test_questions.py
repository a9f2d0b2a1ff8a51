"""Elicitation and sampling requests that a command shows to its user."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.cli.terminal import Questions, Terminal
from trio_mcp.protocol.fields import JSONObject
from trio_mcp.types import ElicitFormParams

FORM = ElicitFormParams("Who?", {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})


class Absent(Terminal):
    """A terminal at which nobody types."""

    def __init__(self) -> None:
        super().__init__(None)
        self.said: list[str] = []

    def say(self, text: str, style: str = "") -> None:
        self.said.append(text)

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        yield

    async def read(self, prompt: str) -> str | None:
        await trio.sleep_forever()


async def test_elicitation_that_arrives_after_the_result_is_not_shown_to_the_user(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    terminal, answers = Absent(), list[object]()
    questions = Questions(terminal, lambda: "the server")

    async def ask() -> None:
        answers.append(await questions.form(FORM))

    nursery.start_soon(ask)
    await wait_all_tasks_blocked()
    shown = terminal.said.copy()
    assert shown[0] == "the server asks: Who?"
    questions.leave_alone()
    nursery.start_soon(ask)
    await wait_all_tasks_blocked()
    assert (terminal.said, answers) == (shown, [])
    nursery.cancel_scope.cancel()


class Typing(Absent):
    """A terminal at which somebody types ``lines``."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.lines = list(lines)

    async def read(self, prompt: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return self.lines.pop(0)


@pytest.mark.parametrize(
    "nick",
    [
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Nick"},
        {"type": ["string", "null"], "default": None},
        {"anyOf": [{"type": "string", "enum": ["b"]}, {"type": "null"}], "default": "zz"},
    ],
)
@pytest.mark.parametrize(("typed", "content"), [("", {"name": "a"}), ("b", {"name": "a", "nick": "b"})])
async def test_user_can_leave_out_an_optional_form_field_sent_by_the_python_sdk(
    nick: object, typed: str, content: object
) -> None:
    form = {"type": "object", "properties": {"name": {"type": "string"}, "nick": nick}, "required": ["name"]}
    terminal = Typing("a", typed, "yes")
    answer = await Questions(terminal, lambda: "the server").form(ElicitFormParams("Who?", form))
    assert (answer.action, answer.content) == ("accept", content)


@pytest.mark.parametrize(("typed", "content"), [("", {"name": "a"}), ("b", {"name": "a", "nick": "b"})])
async def test_user_can_leave_a_required_nullable_form_field_empty(typed: str, content: object) -> None:
    nick = {"anyOf": [{"$ref": "#/$defs/Nick"}, {"type": "null"}]}
    fields = {"name": {"type": "string"}, "nick": nick}
    form = {"properties": fields, "required": ["name", "nick"], "$defs": {"Nick": {"type": "string"}}}
    terminal = Typing("a", typed, "yes")
    answer = await Questions(terminal, lambda: "the server").form(ElicitFormParams("Who?", form))
    assert (answer.action, answer.content) == ("accept", content)


@pytest.mark.parametrize("schema", [FORM.requested_schema, {"type": "object", "properties": {}}], ids=["one", "none"])
async def test_prompt_of_a_form_with_fields_explains_empty_lines_and_ctrl_d(
    schema: JSONObject, nursery: trio.Nursery
) -> None:
    terminal = Absent()
    nursery.start_soon(Questions(terminal, lambda: "the server").form, ElicitFormParams("Who?", schema))
    await wait_all_tasks_blocked()
    hints = ["  (an empty line accepts the value in brackets; Ctrl-D declines)"] if schema["properties"] else []
    assert terminal.said == ["the server asks: Who?", *hints]
    nursery.cancel_scope.cancel()
