"""Plain functions that return awaitables: decorators, lambdas and methods around async functions."""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Annotated, Any

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import Limits, Provide, RequestContext, Server, WorkerContext, open_memory
from trio_mcp.types import ElicitResult, PromptReference


async def double(word: str) -> str:
    await trio.lowlevel.checkpoint()
    return word * 2


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        return function(*args, **kwargs)

    return wrapper


class Words:
    def double(self, word: str) -> Awaitable[str]:
        return double(word)

    def double_by_coroutine(self, word: str) -> Coroutine[Any, Any, str]:
        return double(word)


class Later:
    """An awaitable that is no coroutine."""

    def __await__(self) -> Iterator[Any]:
        return double("x").__await__()


@pytest.mark.parametrize(
    "function",
    [
        logged(double),
        logged(logged(double)),
        lambda word: double(word),
        Words().double,
        Words().double_by_coroutine,
        lambda word: Later(),
    ],
    ids=["wrapper", "two wrappers", "lambda", "method", "method that names a coroutine", "awaitable"],
)
async def test_sync_function_that_returns_an_awaitable_answers_with_its_result(function: Any) -> None:
    server = Server("s")
    server.tool(function, name="tool")
    server.prompt(function, name="prompt")
    server.resource("words:///{word}", name="words")(function)
    server.completion(prompt="prompt", argument="word")(logged(_completed))
    server.resource("words://fixed", name="fixed")(lambda: double("x"))

    async with open_memory(server) as client:
        assert (await client.call_tool("tool", {"word": "x"})).text == "xx"
        prompt = await client.get_prompt("prompt", {"word": "x"})
        assert prompt.messages[0].content.text == "xx"
        assert (await client.read_resource("words:///x")).contents[0].text == "xx"
        assert (await client.read_resource("words://fixed")).contents[0].text == "xx"
        assert (await client.complete(PromptReference("prompt"), "word", "x")).values == ["xx"]


async def _completed(value: str) -> list[str]:
    return [await double(value)]


async def test_output_schema_of_a_handler_annotated_with_awaitable_is_the_schema_of_the_awaited_type() -> None:
    server = Server("s")

    @server.tool
    def count(word: str) -> Awaitable[int]:
        return _length(word)

    async with open_memory(server) as client:
        (tool,) = [tool async for tool in client.list_tools()]
        assert tool.output_schema is not None
        assert tool.output_schema["properties"]["result"] == {"type": "integer"}
        assert (await client.call_tool("count", {"word": "abc"})).structured_content == {"result": 3}


async def _length(word: str) -> int:
    return len(word)


@pytest.mark.parametrize("wrap", [logged, lambda function: lambda ctx: function(ctx)])
async def test_async_handler_decorated_with_a_sync_wrapper_can_use_its_context(wrap: Any) -> None:
    server, progress, logs = Server("s", limits=Limits(progress_interval=0)), list[Any](), list[Any]()

    async def work(ctx: RequestContext) -> str:
        ctx.progress(1)
        await ctx.log.warning("half")
        answer = await ctx.elicit("Sure?", bool)
        await ctx.check_cancelled()
        with trio.move_on_after(0) as scope:
            await trio.sleep_forever()
        return f"{answer.content} {ctx.is_cancelled} {scope.cancelled_caught}"

    server.tool(name="work")(wrap(work))

    async def accept(_: Any) -> ElicitResult:
        return ElicitResult("accept", {"value": True})

    async with open_memory(server, era="legacy", elicitation=accept, on_log=logs.append) as client:
        with trio.fail_after(PATIENCE):
            result = await client.call_tool("work", on_progress=progress.append)
    assert (result.text, len(progress), len(logs)) == ("{'value': True} False True", 1, 1)


ORDER: list[str] = []


def connect() -> Iterator[str]:
    yield "open"
    ORDER.append("closed")


async def test_awaitable_result_is_awaited_while_dependencies_are_open() -> None:
    server = Server("s")
    ORDER.clear()

    async def use(base: Annotated[str, Provide(connect)], word: str) -> str:
        await trio.lowlevel.checkpoint()
        ORDER.append("used")
        return base + word

    server.tool(logged(use))
    async with open_memory(server) as client:
        assert (await client.call_tool("use", {"word": "!"})).text == "open!"
    assert ORDER == ["used", "closed"]


async def test_cancelled_call_cancels_the_awaitable_returned_by_a_sync_function() -> None:
    server, started, ended = Server("s"), trio.Event(), list[str]()

    async def forever(ctx: WorkerContext) -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.append("ended")

    server.tool(logged(forever))
    async with open_memory(server) as client:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "forever")
                await started.wait()
                nursery.cancel_scope.cancel()
    assert ended == ["ended"]
