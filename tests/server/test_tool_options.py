"""Time limits, concurrency limits, required capabilities and explicit schemas of tools."""

from __future__ import annotations

import threading
from typing import Any, Literal

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, Cancellation, PeerError, RequestContext, Server, ToolError, open_memory
from trio_mcp.types import CallToolResult, CreateMessageResult, TextContent


def text_of(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


async def test_tool_that_exceeds_its_timeout_is_cancelled_and_returns_an_error_result(
    autojump_clock: MockClock,
) -> None:
    server, seen = Server("s"), list[Cancellation | None]()

    @server.tool(timeout=3)
    async def slow(ctx: RequestContext) -> str:
        try:
            await trio.sleep_forever()
        finally:
            seen.append(ctx.cancellation)

    async with open_memory(server) as client:
        result = await client.call_tool("slow")
    assert result.is_error
    assert "3 seconds" in text_of(result)
    assert seen[0] is not None
    assert seen[0].cause is CancelCause.DEADLINE


ERAS: list[Literal["legacy", "modern"]] = ["legacy", "modern"]


@pytest.mark.parametrize("era", ERAS)
async def test_tool_timeout_does_not_include_the_time_of_elicitations(
    era: Literal["legacy", "modern"], autojump_clock: MockClock
) -> None:
    server = Server("s")

    @server.tool(timeout=3)
    async def order(ctx: RequestContext) -> str:
        await trio.sleep(1)
        for _ in range(2):
            await ctx.elicit("Really?", {"type": "object", "properties": {}})
        await trio.sleep(1)
        assert not ctx.is_cancelled
        return "ordered"

    async def think(_: Any) -> dict[str, Any]:
        await trio.sleep(100)
        return {}

    async with open_memory(server, era=era, elicitation=think) as client:
        assert text_of(await client.call_tool("order")) == "ordered"
        assert trio.current_time() == 202


@pytest.mark.parametrize("era", ERAS)
async def test_tool_timeout_counts_again_after_an_elicitation_is_answered(
    era: Literal["legacy", "modern"], autojump_clock: MockClock
) -> None:
    server, events = Server("s"), list[threading.Event]()

    @server.tool(timeout=3)
    async def order(ctx: RequestContext) -> None:
        events.append(ctx.cancelled)
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            for message in ("Really?", "And the other?"):
                nursery.start_soon(ctx.elicit, message, {"type": "object", "properties": {}})
        assert not ctx.cancelled.is_set()
        await trio.sleep_forever()

    async def think(question: Any) -> dict[str, Any]:
        await trio.sleep(50 if question.message == "Really?" else 100)
        return {}

    async with open_memory(server, era=era, elicitation=think) as client:
        result = await client.call_tool("order")
    assert trio.current_time() == 103
    assert result.is_error
    assert "3 seconds" in text_of(result)
    assert events[0].is_set()


@pytest.mark.parametrize("era", ERAS)
async def test_tool_timeout_includes_the_time_of_sampling(
    era: Literal["legacy", "modern"], autojump_clock: MockClock
) -> None:
    server = Server("s")

    @server.tool(timeout=3)
    async def ask(ctx: RequestContext) -> None:
        await ctx.sample("hi", max_tokens=1)

    async with open_memory(server, era=era, sampling=ponder) as client:
        result = await client.call_tool("ask")
    assert result.is_error


async def ponder(_: Any) -> CreateMessageResult:
    await trio.sleep(10)
    return CreateMessageResult("assistant", TextContent("hm"), "m")


async def test_tool_within_its_timeout_returns_its_result(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(timeout=3)
    async def quick() -> str:
        await trio.sleep(2)
        return "done"

    async with open_memory(server) as client:
        assert text_of(await client.call_tool("quick")) == "done"


async def test_tool_calls_above_the_max_concurrency_of_the_tool_wait_for_running_calls(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")
    running = most = 0

    @server.tool(max_concurrency=2)
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(client.call_tool, "work")
    assert most == 2


async def test_tool_call_that_waits_because_of_max_concurrency_can_be_cancelled_before_it_runs(
    autojump_clock: MockClock,
) -> None:
    server, ran = Server("s"), list[int]()

    @server.tool(max_concurrency=1)
    async def work(number: int) -> None:
        ran.append(number)
        await trio.sleep(10)

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "work", {"number": 1})
        await wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await client.call_tool("work", {"number": 2})
    assert ran == [1]


@pytest.mark.parametrize(("era", "code"), [("legacy", -32600), ("modern", -32021)])
async def test_tool_call_without_a_required_client_capability_is_rejected(era: Any, code: int) -> None:
    server = Server("s")

    @server.tool(requires=["sampling.tools"])
    async def ask() -> None: ...

    async with open_memory(server, era=era) as client:
        with pytest.raises(PeerError) as caught:
            await client.call_tool("ask")
    assert caught.value.code == code
    if era == "modern":
        assert caught.value.data == {"requiredCapabilities": {"sampling": {"tools": {}}}}


async def test_explicit_input_schema_is_listed_unchanged_and_validated() -> None:
    server = Server("s")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 3}}, "x-order": ["n"]}

    @server.tool(input_schema=schema)
    async def third(arguments: dict[str, Any]) -> int:
        return arguments["n"] // 3

    async with open_memory(server) as client:
        assert [tool.input_schema async for tool in client.list_tools()] == [schema]
        assert (await client.call_tool("third", {"n": 9})).structured_content == {"result": 3}
        refused = await client.call_tool("third", {"n": 4})
    assert refused.is_error
    assert "multiple of 3" in text_of(refused)


async def test_tool_output_is_validated_if_check_output_is_on() -> None:
    server = Server("s")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}

    @server.tool(output_schema=schema, check_output=True)
    async def broken() -> dict[str, Any]:
        return {"n": "three"}

    async with open_memory(server) as client:
        refused = await client.call_tool("broken")
    assert refused.is_error
    assert text_of(refused) == (
        'broken returned a result that does not fit its output schema: "three" is not of type "integer" at n'
    )


async def test_tool_with_an_output_schema_that_returns_no_structured_content_causes_an_error() -> None:
    server = Server("s")
    owed, other = (
        "declares an output schema, but returned no structured content",
        "returned a result that does not fit its output",
    )
    words = {"content": owed, "nothing": owed} | dict.fromkeys(("text", "list"), f"{other} schema: it is not an object")

    @server.tool(output_schema={"type": "object"})
    async def forgetful(result: str) -> Any:
        return {"content": CallToolResult([TextContent("oops")]), "text": "oops", "list": [{}], "nothing": None}[result]

    async with open_memory(server) as client:
        refused = {result: await client.call_tool("forgetful", {"result": result}) for result in words}
    assert all(each.is_error for each in refused.values())
    assert {result: text_of(each).removeprefix("forgetful ") for result, each in refused.items()} == words


async def test_only_the_text_of_a_tool_error_is_sent_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("s")

    @server.tool
    async def fail(kind: str) -> None:
        if kind == "told":
            raise ToolError("the file is locked")
        raise ValueError("password=hunter2")

    async with open_memory(server) as client:
        told = await client.call_tool("fail", {"kind": "told"})
        hidden = await client.call_tool("fail", {"kind": "secret"})
    assert told.is_error
    assert text_of(told) == "the file is locked"
    assert hidden.is_error
    assert text_of(hidden) == "internal error in tool fail"
    assert "hunter2" in caplog.text


def test_return_annotation_that_cannot_be_encoded_as_json_raises_an_error_with_instructions() -> None:
    async def start() -> trio.Process: ...

    with pytest.raises(
        TypeError,
        match=r"the return annotation of start cannot be used: Process has no JSON form.*leave the annotation out",
    ):
        Server("s").tool(start)


def test_tool_name_registered_twice_raises() -> None:
    server = Server("s")

    @server.tool
    async def echo() -> None: ...

    with pytest.raises(ValueError, match=r"already a .* named 'echo'"):
        server.tool(echo)


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": "object", "properties": 3}])
def test_invalid_json_schema_raises_at_registration(schema: dict[str, Any]) -> None:
    async def tool() -> None: ...

    with pytest.raises(ValueError, match=r"schema|Schema"):
        Server("s").tool(input_schema=schema)(tool)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_only_a_lenient_tool_converts_strings_to_numbers_and_booleans(era: Any) -> None:
    server = Server("s")

    async def add(a: int, b: float, flag: bool, points: list[int]) -> list[Any]:
        return [a, b, flag, points]

    server.tool(name="strict")(add)
    server.tool(name="lenient", lenient=True)(add)
    arguments = {"a": "3", "b": "1.5", "flag": "true", "points": ["1", 2]}
    async with open_memory(server, era=era) as client:
        assert (await client.call_tool("lenient", arguments)).as_(list[Any]) == [3, 1.5, True, [1, 2]]
        assert "$.a" in (await client.call_tool("lenient", {**arguments, "a": "three"})).text
        refused = await client.call_tool("strict", arguments)
        assert refused.is_error
        assert "Expected `int`, got `str`" in refused.text
        strict, lenient = [tool async for tool in client.list_tools()]
        assert strict.input_schema == lenient.input_schema
