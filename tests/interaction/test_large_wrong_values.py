"""16 MiB of invalid values don't block other clients: values too large to check are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import pytest
from trio.testing import MockClock

from trio_mcp import RequestContext, Server, open_memory
from trio_mcp.jsonrpc.sizes import is_small
from trio_mcp.types import ElicitResult

from .memory_peer import LATEST_LEGACY, MemoryPeer, connected, connected_twice

ROOM = 16 * 1024 * 1024 - 1000
"""Bytes of a message that are left for what is wrong."""
MOST = 101_000
"""Parts of what may be checked with keywords that take long, and of what is around it."""


@dataclass
class Line:
    amount: int


def shop() -> Server:
    server = Server("shop")

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def add(lines: list[Line]) -> str:
        raise AssertionError("it never fits")

    def offer(name: str, items: Any, **more: Any) -> None:
        lines = {"type": "array", "items": items, **more}

        @server.tool(name=name, input_schema={"type": "object", "properties": {"lines": lines}})
        async def never(arguments: dict[str, Any]) -> str:
            raise AssertionError("it never fits")

    offer("words", {"type": "string"})
    offer("once", {}, uniqueItems=True)
    offer("fractions", {"multipleOf": 0.01})
    offer("any", {"anyOf": [{"type": "string"}, {"type": "boolean"}]})
    offer("found", {}, contains={"type": "string"})
    return server


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is given to validators."""
    values: list[Any] = []
    make = jsonschema_rs.validator_for

    class Spy:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.validator = make(*args, **options)

        def is_valid(self, value: Any) -> bool:
            values.append(value)
            return self.validator.is_valid(value)

    monkeypatch.setattr(jsonschema_rs, "validator_for", Spy)
    return values


def line(peer: MemoryPeer, tool: str, item: str, last: str) -> tuple[Any, bytes]:
    """A call with as many equal items as there is room for, and one more; and its id."""
    message = peer.call_message(tool, {"lines": "HERE"})
    items = f"{item}," * (ROOM // (len(item) + 1)) + last
    text = str(message).replace("'", '"').replace("True", "true").replace('"HERE"', f"[{items}]")
    return message["id"], text.encode()


@pytest.mark.parametrize(
    ("tool", "item", "last"),
    [
        ("add", '{"amount": 1.0, "and": "more than that, so that there are fewer"}', "0.5"),
        ("add", "1.0", "0.5"),
        ("words", "1", "1"),
        ("words", '"a"', "1"),
        ("once", "1000000000000000000000000000000", "1"),
        ("fractions", "1.7e20", "1"),
        ("any", "true", "1"),
        ("found", "1", "1"),
    ],
)
async def test_large_invalid_arguments_do_not_block_other_clients(
    autojump_clock: MockClock, checked: list[Any], tool: str, item: str, last: str
) -> None:
    async with connected_twice(shop()) as (greedy, other):
        await greedy.open(LATEST_LEGACY)
        await other.open(LATEST_LEGACY)
        call, wrong = line(greedy, tool, item, last)
        await greedy.send(wrong)
        del wrong
        assert await other.text("echo", {"text": "hi"}) == "hi"
        refusal = (await greedy.reply(call))["result"]
        assert refusal["isError"]
        assert f"Invalid arguments for {tool}" in refusal["content"][0]["text"]
        assert await greedy.text("echo", {"text": "still"}) == "still"
    if tool == "words":  # which is said of each item in the time that a few bytes are decoded
        assert len(checked) == 1
    else:
        assert not checked


async def test_large_message_with_numbers_that_parse_slowly_is_refused_without_blocking_other_clients(
    autojump_clock: MockClock,
) -> None:
    async with connected_twice(shop()) as (greedy, other):
        await greedy.open(LATEST_LEGACY)
        await other.open(LATEST_LEGACY)
        call, wrong = line(greedy, "words", "1e300", "1")
        await greedy.send(wrong)
        assert await other.text("echo", {"text": "hi"}) == "hi"
        assert (await greedy.reply(call))["error"]["message"] == (
            "Parse error: the message has more than 100000 numbers with exponents of three digits"
        )


async def test_server_rejects_a_large_elicitation_answer_that_is_too_expensive_to_validate(
    autojump_clock: MockClock, checked: list[Any]
) -> None:
    server = shop()
    choices = [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]
    form = {"type": "object", "properties": {"lines": {"type": "array", "items": {"anyOf": choices}}}}

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        with pytest.raises(Exception, match="too large to be checked"):
            await ctx.elicit("which?", form)
        return "refused"

    async with connected(server, LATEST_LEGACY, {"elicitation": {}}) as peer:
        call = await peer.start("ask")
        question = await peer.question("elicitation/create")
        await peer.answer(question, {"action": "accept", "content": {"lines": ["a"] * 200_000}})
        assert (await peer.reply(call))["result"]["content"][0]["text"] == "refused"
    assert all(is_small(value, MOST, MOST * 10, 10) for value in checked)


async def test_client_rejects_a_large_elicitation_answer_that_is_too_expensive_to_validate(checked: list[Any]) -> None:
    server = Server("asks")
    choices = [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]
    form = {"type": "object", "properties": {"lines": {"type": "array", "items": {"anyOf": choices}}}}

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        return (await ctx.elicit("which?", form)).action

    async def accept(params: Any) -> ElicitResult:
        return ElicitResult("accept", {"lines": ["a"] * 200_000})

    async with open_memory(server, elicitation=accept, era="legacy") as client:
        assert (await client.call_tool("ask")).is_error
    assert not checked
