"""What goes wrong in a handler: told to the model where it was a tool's, and nothing internal to anybody."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio
from tests.interaction.memory_peer import REVISIONS, connected
from trio.testing import MockClock

from trio_mcp import CodedError, PeerError, RequestContext, Server, ToolError, open_memory
from trio_mcp.types import AudioContent, CallToolResult

SECRET = "hunter2"


class Odd(BaseException):
    pass


async def child(error: BaseException) -> None:
    raise error


async def in_own_nursery(ctx: RequestContext) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child, ValueError(SECRET))
        nursery.start_soon(child, KeyError(SECRET))


async def in_request_nursery(ctx: RequestContext) -> None:
    ctx.nursery.start_soon(child, ValueError(SECRET))


async def at_the_client(ctx: RequestContext) -> None:
    raise PeerError(-32601, SECRET)


async def unsendable(ctx: RequestContext) -> Any:
    return {"mean": float("nan")}


async def foreign(ctx: RequestContext) -> Any:
    return object()


async def no_class_of_ours(ctx: RequestContext) -> Any:
    return CallToolResult(meta=cast("Any", 3))


async def leaves(ctx: RequestContext) -> None:
    sys.exit(SECRET)


async def odd(ctx: RequestContext) -> None:
    raise Odd(SECRET)


FAILING = [in_own_nursery, in_request_nursery, at_the_client, unsendable, foreign, no_class_of_ours, leaves, odd]


def served(function: Callable[..., Any], **options: Any) -> Server:
    server = Server("s", **options)
    server.tool(name="work")(function)
    return server


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("function", FAILING)
async def test_unexpected_exception_in_a_tool_becomes_an_error_result_without_its_text(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    function: Callable[[RequestContext], Awaitable[Any]],
    revision: str,
) -> None:
    async with connected(served(function), revision) as peer:
        failed = await peer.call("work")
        assert failed["isError"] is True
        text = failed["content"][0]["text"]
        assert text.startswith("internal error in tool work")
        assert SECRET not in text
        assert (await peer.request("tools/list"))["result"]
    assert any(record.levelno == logging.ERROR and "tools/call" in record.message for record in caplog.records)


@pytest.mark.parametrize("where", ["own", "request"])
async def test_tool_error_raised_in_a_child_task_becomes_an_error_result_with_its_text(
    caplog: pytest.LogCaptureFixture, where: str
) -> None:
    server = Server("s")

    @server.tool
    async def work(ctx: RequestContext) -> None:
        if where == "request":
            ctx.nursery.start_soon(child, ToolError("the disk is full"))
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child, ToolError("the disk is full"))

    async with open_memory(server) as client:
        result = await client.call_tool("work")
    assert (result.is_error, result.text) == (True, "the disk is full")
    assert caplog.records == []


@pytest.mark.parametrize(("code", "message"), [("E42", "no"), (None, "no"), (4.2, "no"), (42, None)])
async def test_exception_with_an_invalid_error_code_fails_only_its_request(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, code: Any, message: Any
) -> None:
    async def work(wrong: bool) -> str:
        if wrong:
            raise CodedError(code, message)
        return "fine"

    async with connected(served(work), REVISIONS[-1]) as peer:
        assert (await peer.call("work", {"wrong": True}))["isError"] is True
        assert await peer.text("work", {"wrong": False}) == "fine"
    assert "CodedError needs an integer code and a string" in caplog.text


async def test_result_that_the_revision_cannot_express_causes_a_tool_error(caplog: pytest.LogCaptureFixture) -> None:
    async def sing() -> AudioContent:
        return AudioContent("aGk=", "audio/wav")

    async with connected(served(sing), "2024-11-05") as peer:
        failed = await peer.call("work")
        assert failed["isError"] is True
        assert "2024-11-05" in failed["content"][0]["text"]


async def test_failed_prompt_or_resource_is_answered_with_an_error_response() -> None:
    server = Server("s")

    @server.resource("x://broken")
    async def broken() -> str:
        raise ValueError(SECRET)

    @server.prompt(name="broken")
    async def prompt() -> str:
        raise ToolError(SECRET)

    async with open_memory(server) as client:
        for call in (client.read_resource("x://broken"), client.get_prompt("broken")):
            with pytest.raises(PeerError) as caught:
                await call
            assert (caught.value.code, caught.value.message) == (-32603, "Internal error")


async def test_error_responses_contain_exception_type_and_text_if_expose_errors_is_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)  # the surrogate below has no place in a report of xdist
    server = served(in_own_nursery, expose_errors=True)

    @server.resource("x://broken")
    async def broken() -> str:
        raise ValueError("no \ud800 such file " + "x" * 100_000)

    async with open_memory(server) as client:
        result = await client.call_tool("work")
        assert result.is_error
        assert result.text.startswith("internal error in tool work: ")
        assert {f"ValueError: {SECRET}", f"KeyError: '{SECRET}'"} == set(result.text.split(": ", 1)[1].split("; "))
        with pytest.raises(PeerError, match=r"Internal error: ValueError: no \\ud800 such file x+") as caught:
            await client.read_resource("x://broken")
    assert len(caught.value.message) < 5000


class BrokenTracing:
    """An observer that fails where it must not."""

    def _watch_load(self, counts: object) -> None: ...

    def _tracer_of(self, network: str | None) -> Any:
        return self

    def calling(self, request: Any, params: Any, present: Any) -> None:
        return None

    def close(self, role: str, revision: str | None) -> None: ...

    def handling(self, request: Any, queued: float = 0.0) -> None:
        if request.params.get("name") == "watched":
            raise LookupError("broken")


async def test_exception_in_a_tracing_observer_fails_only_its_request(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("s", tracing=BrokenTracing())

    @server.tool
    async def watched() -> str:
        raise AssertionError

    @server.tool
    async def unwatched() -> str:
        return "fine"

    async with open_memory(server) as client:
        result = await client.call_tool("watched")
        assert (result.is_error, result.text) == (True, "internal error in tool watched")
        assert (await client.call_tool("unwatched")).text == "fine"
    assert "LookupError: broken" in caplog.text
