"""Handlers that run on asyncio: tools, resources, prompts, completers, and all that may surround them."""

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import pytest
import trio
import trio.lowlevel
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock

from trio_mcp import (
    CancelCause,
    Limits,
    MCPError,
    Next,
    Provide,
    RequestContext,
    Server,
    ServerRequest,
    ToolError,
    open_memory,
)
from trio_mcp.middleware import time_limit
from trio_mcp.types import CreateMessageResult, PromptReference, TextContent

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


class Numbers:
    """An argument that can be watched."""


def loop_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "trio-mcp asyncio"]


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Generator[None]:
    yield
    assert not loop_threads()


def runs_here() -> bool:
    return asyncio.current_task() is not None and threading.current_thread() is not threading.main_thread()


async def awaited(answer: Awaitable[Any]) -> Any:
    return await answer


async def happened(event: threading.Event) -> None:
    assert await trio.to_thread.run_sync(event.wait, PATIENCE, abandon_on_cancel=True)


async def abandoned(caplog: pytest.LogCaptureFixture) -> None:
    """Wait until a task is abandoned. Its request counts as in flight no longer by then, and perhaps earlier."""
    with trio.fail_after(PATIENCE):
        while "is abandoned: " not in caplog.text:  # noqa: ASYNC110, no event is public
            await trio.sleep(0.001)


async def test_asyncio_tool_runs_in_an_asyncio_task_with_all_context_features() -> None:
    server = Server("s")

    @server.tool(asyncio=True)
    async def greet(greeting: str, ctx: RequestContext) -> str:
        assert runs_here()
        ctx.progress(1, 2)
        await ctx.log.warning("asking")
        answer = await ctx.elicit("Who?", FORM)
        sampled = await ctx.sample("Say hello", max_tokens=9)
        await ctx.check_cancelled()
        await asyncio.sleep(0.001)
        assert not ctx.is_cancelled
        return f"{greeting} {answer.content} {sampled.content.text} {ctx.request_id is not None}"

    steps: list[float] = []
    logged: list[Any] = []  # clients keep the order within each of the two kinds
    async with open_memory(
        server,
        elicitation=lambda _: {"name": "Ann"},
        sampling=lambda _: CreateMessageResult("assistant", TextContent("hello"), "model"),
        on_log=lambda told: logged.append(told.data),
    ) as client:
        await client.set_log_level("info")
        result = await client.call_tool(
            "greet", {"greeting": "hi"}, on_progress=lambda told: steps.append(told.progress)
        )
        assert result.text == "hi {'name': 'Ann'} hello True"
    assert (steps, logged) == ([1], ["asking"])


async def test_asyncio_loop_starts_at_the_first_call_and_ends_when_the_server_ends() -> None:
    server = Server("s")

    @server.tool(asyncio=True)
    async def here() -> bool:
        return runs_here()

    async with open_memory(server) as client:
        assert [tool.name async for tool in client.list_tools()] == ["here"]
        assert not loop_threads()
        for _ in range(2):
            assert (await client.call_tool("here")).structured_content == {"result": True}
        assert len(loop_threads()) == 1


async def test_cancelled_request_cancels_its_asyncio_task_and_waits_for_the_task() -> None:
    server = Server("s")
    started, ended = threading.Event(), threading.Event()
    seen: list[Any] = []

    @server.tool(asyncio=True)
    async def wait(ctx: RequestContext) -> None:
        started.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError as error:
            await asyncio.sleep(0.01)  # cleanup may wait
            seen.extend((error.args, ctx.cancellation and ctx.cancellation.cause, server.statistics().in_flight))
            raise
        finally:
            ended.set()

    async with open_memory(server) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "wait")
            await happened(started)
            nursery.cancel_scope.cancel(reason="enough of it")
        await happened(ended)
    assert seen == [("enough of it",), CancelCause.PEER, 1]


async def test_tool_timeout_or_cancelled_elicitation_cancels_the_asyncio_task() -> None:
    server = Server("s")
    started: list[str] = []  # a cancel may come before the first step
    ends: list[str] = []

    @server.tool(asyncio=True, timeout=0.05)
    async def slow() -> None:
        started.append("slow")
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ends.append("slow")

    @server.tool(asyncio=True)
    async def asks(ctx: RequestContext) -> None:
        try:
            async with asyncio.timeout(0.01):
                await ctx.elicit("Who?", FORM)
        except TimeoutError:
            ends.append("asks")
            raise ToolError("no answer") from None

    async def never(_: Any) -> Any:
        await trio.sleep_forever()

    async with open_memory(server, elicitation=never, era="legacy") as client:
        assert (await client.call_tool("slow")).is_error
        assert (await client.call_tool("asks")).text == "no answer"
    assert ends == [*started, "asks"]


@pytest.mark.parametrize("raised", [ValueError("no"), ToolError("no"), SystemExit(1), asyncio.CancelledError("own")])
async def test_exception_of_an_asyncio_handler_fails_only_its_request(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("s")

    @server.tool(asyncio=True)
    async def fails(again: bool = False) -> str:
        if not again:
            raise raised
        return "fine"

    async with open_memory(server) as client:
        assert (await client.call_tool("fails")).is_error
        assert (await client.call_tool("fails", {"again": True})).text == "fine"
    assert ("fails" in caplog.text) == (not isinstance(raised, ToolError))


@pytest.mark.parametrize("raised", [SystemExit(1), KeyboardInterrupt()], ids=lambda raised: type(raised).__name__)
async def test_system_exit_in_an_asyncio_child_task_stops_neither_the_loop_nor_other_calls(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("s")
    waiting = threading.Event()
    go_on: list[asyncio.Event] = []

    async def leave() -> None:
        raise raised

    @server.tool(asyncio=True)
    async def wait() -> str:
        go_on.append(asyncio.Event())
        waiting.set()
        await go_on[0].wait()
        return "waited"

    @server.tool(asyncio=True)
    async def fails() -> None:
        go_on[0].set()
        async with asyncio.TaskGroup() as group:
            group.create_task(leave())

    @server.tool(asyncio=True)
    async def stops() -> str:
        asyncio.get_running_loop().stop()
        return "fine"

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        texts: list[str] = []

        async def call_wait() -> None:
            texts.append((await client.call_tool("wait")).text)

        nursery.start_soon(call_wait)
        await happened(waiting)
        with trio.fail_after(PATIENCE):
            assert (await client.call_tool("fails")).is_error
            for _ in range(2):
                assert (await client.call_tool("stops")).text == "fine"
    assert texts == ["waited"]
    assert f"a task of asyncio raised {type(raised).__name__}, which would end the server" in caplog.text


async def test_failed_asyncio_loop_fails_its_calls_and_is_restarted_by_the_next_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("s")
    waiting = threading.Event()

    @server.tool(asyncio=True)
    async def wait() -> None:
        waiting.set()
        await asyncio.sleep(PATIENCE)

    @server.tool(asyncio=True)
    async def breaks() -> None:
        def fail() -> None:
            raise OSError("the selector was closed")

        loop: Any = asyncio.get_running_loop()
        loop._run_once = fail

    @server.tool(asyncio=True)
    async def fine() -> str:
        return "fine"

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        failed: list[Any] = []

        async def call_wait() -> None:
            failed.append((await client.call_tool("wait")).is_error)

        nursery.start_soon(call_wait)
        await happened(waiting)
        with trio.fail_after(PATIENCE / 2):
            assert (await client.call_tool("breaks")).is_error
            assert (await client.call_tool("fine")).text == "fine"
            while not failed:  # noqa: ASYNC110, until its call has ended
                await trio.sleep(0.001)
    assert failed == [True]
    assert "the event loop of asyncio has failed" in caplog.text


async def test_asyncio_handler_that_swallows_its_cancellation_is_logged_and_no_longer_awaited(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_mcp.concurrency.asyncio_thread._PATIENCE", 0.05)
    server = Server("s", limits=Limits(cleanup_grace=0.05, shutdown_grace=0.05))
    started = threading.Event()

    @server.tool(asyncio=True)
    async def stubborn() -> None:
        while True:
            started.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE)

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "stubborn")
        await happened(started)
        nursery.cancel_scope.cancel(reason="enough")
    words = [record.getMessage() for record in caplog.records if record.name == "trio_mcp"]
    assert any("stubborn swallows asyncio.CancelledError" in each for each in words), words
    assert any("swallows asyncio.CancelledError, and is dropped" in each for each in words), words


async def test_asyncio_handler_that_blocks_the_loop_does_not_block_server_shutdown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_mcp.concurrency.asyncio_thread._PATIENCE", 0.01)
    server = Server("s", limits=Limits(cleanup_grace=0.05, shutdown_grace=0.05))
    started, go_on = threading.Event(), threading.Event()

    @server.tool(asyncio=True)
    async def blocks() -> None:
        started.set()
        go_on.wait(PATIENCE)

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "blocks")
        await happened(started)
        nursery.cancel_scope.cancel(reason="enough")
    assert "its thread is left behind" in caplog.text
    (left,) = [thread for thread in threading.enumerate() if thread.name == "trio-mcp asyncio"]
    go_on.set()
    await trio.to_thread.run_sync(left.join, PATIENCE)


async def test_asyncio_tasks_that_a_handler_leaves_running_end_when_the_server_ends() -> None:
    server = Server("s")
    left: list[Any] = []
    ended = threading.Event()

    @server.tool(asyncio=True)
    async def starts(ctx: RequestContext) -> str:
        async def goes_on() -> None:
            try:
                await asyncio.sleep(0.01)
                with pytest.raises(RuntimeError, match="the request is over"):
                    await ctx.log.info("late")
                await asyncio.sleep(PATIENCE)
            finally:
                ended.set()

        left.append(asyncio.create_task(goes_on()))
        return "started"

    async with open_memory(server) as client:
        assert (await client.call_tool("starts")).text == "started"
        await trio.sleep(0.05)
    assert ended.is_set()


async def test_resources_prompts_and_completers_can_run_on_asyncio() -> None:
    server = Server("s")

    @server.resource("note://{name}", asyncio=True)
    async def note(name: str) -> str:
        return f"{name} {runs_here()}"

    @server.prompt(asyncio=True)
    async def ask(topic: str) -> str:
        return f"{topic} {runs_here()}"

    @server.completion(prompt="ask", argument="topic", asyncio=True)
    async def topics(value: str) -> list[str]:
        return [str(runs_here())]

    async with open_memory(server) as client:
        assert (await client.read_resource("note://a")).text == "a True"
        assert (await client.get_prompt("ask", {"topic": "b"})).messages[0].content.text == "b True"
        assert (await client.complete(PromptReference("ask"), "topic", "x")).values == ["True"]


async def test_server_with_asyncio_true_runs_async_functions_on_asyncio_and_sync_functions_in_threads() -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[str]:
        task = asyncio.current_task()
        steps.append("up")
        yield "value"
        assert asyncio.current_task() is task
        await asyncio.sleep(0.001)
        steps.append("down")

    server = Server("s", lifespan=lifespan, asyncio=True)

    async def connect() -> AsyncGenerator[str]:
        assert runs_here()
        steps.append("connected")
        yield "connection"
        await asyncio.sleep(0.001)
        steps.append("closed")

    def plain() -> str:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return "plain"

    async def pool() -> AsyncGenerator[str]:
        assert runs_here()
        yield "pool"
        steps.append("pool closed")

    @server.tool
    async def use(
        ctx: RequestContext,
        one: Annotated[str, Provide(connect)],
        two: Annotated[str, Provide(plain)],
        three: Annotated[str, Provide(pool, once=True)],
    ) -> str:
        assert runs_here()
        steps.append("used")
        return f"{one} {two} {three} {ctx.lifespan}"

    @server.tool
    def in_thread() -> str:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return "plain"

    @server.tool(asyncio=False)
    async def on_trio() -> None:
        await trio.lowlevel.checkpoint()

    @server.middleware("tools/call")
    async def around(request: ServerRequest, next: Next) -> Any:
        assert runs_here()
        await asyncio.sleep(0)
        steps.append(f"around {request.params.name}")
        await request.ctx.log.info("called")
        return await next(request)

    server.middleware("tools/call")(time_limit(PATIENCE))

    async with open_memory(server) as client:
        assert (await client.call_tool("use")).text == "connection plain pool value"
        assert steps == ["up", "around use", "connected", "used", "closed"]
        assert (await client.call_tool("in_thread")).text == "plain"
        assert not (await client.call_tool("on_trio")).is_error
    assert steps[-2:] == ["pool closed", "down"]


async def test_dependencies_of_a_cancelled_asyncio_call_are_closed_in_its_task() -> None:
    server = Server("s")
    started, closed = threading.Event(), threading.Event()
    tasks: list[Any] = []

    @asynccontextmanager
    async def connect() -> AsyncGenerator[str]:
        tasks.append(asyncio.current_task())
        try:
            yield "connection"
        finally:
            await asyncio.sleep(0.01)
            tasks.append(asyncio.current_task())
            closed.set()

    @server.tool(asyncio=True)
    async def wait(connection: Annotated[str, Provide(connect)]) -> None:
        started.set()
        await asyncio.sleep(PATIENCE)

    async with open_memory(server) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "wait")
            await happened(started)
            nursery.cancel_scope.cancel(reason="enough")
        await happened(closed)
    assert tasks[0] is tasks[1]


async def test_exception_in_an_asyncio_lifespan_fails_the_server_start() -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[None]:
        await asyncio.sleep(0)
        raise OSError("no database")
        yield

    with pytest.raises(OSError, match="no database"):
        async with open_memory(Server("s", lifespan=lifespan, asyncio=True)):
            pass


def test_sync_function_with_the_asyncio_option_raises_at_registration() -> None:
    with pytest.raises(TypeError, match="asyncio=True needs an async function"):

        @Server("s").tool(asyncio=True)
        def plain() -> None:
            pass


async def test_trio_handler_that_awaits_asyncio_fails_with_a_log_that_names_the_asyncio_option(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("s")

    @server.tool
    async def sleeps() -> None:
        await asyncio.sleep(1)

    async with open_memory(server) as client:
        assert (await client.call_tool("sleeps")).is_error
    assert "@server.tool(asyncio=True)" in caplog.text
    assert logging.getLogger("trio_mcp")


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_asyncio_handler_can_be_replayed(era: Any) -> None:
    server = Server("s")
    ends: list[str] = []

    @server.tool(asyncio=True, replay=True)
    async def greet(ctx: RequestContext) -> str:
        try:
            answer = await ctx.elicit("Who?", FORM)
            return f"hello {answer.content}"
        finally:
            ends.append("end")

    async with open_memory(server, elicitation=lambda _: {"name": "Ann"}, era=era) as client:
        assert (await client.call_tool("greet")).text == "hello {'name': 'Ann'}"
    assert len(ends) == (2 if era == "modern" else 1)


async def test_mcp_task_of_an_asyncio_tool_runs_and_is_cancelled_on_asyncio() -> None:
    server = Server("s")
    started, ended = threading.Event(), threading.Event()

    @server.tool(asyncio=True, task="required")
    async def works(ctx: RequestContext) -> str:
        assert runs_here()
        assert ctx.task is not None
        started.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.set()
        return "done"

    async with open_memory(server) as client:
        running = await client.start_task("works")
        await happened(started)
        await running.cancel()
        await happened(ended)


async def test_asyncio_tools_of_a_mounted_server_run_on_the_asyncio_loop_of_the_outer_server() -> None:
    whole, part = Server("whole"), Server("part", asyncio=True)
    loops: set[Any] = set()

    @whole.tool(asyncio=True)
    async def one() -> None:
        loops.add(asyncio.get_running_loop())

    @part.tool
    async def two() -> None:
        loops.add(asyncio.get_running_loop())

    whole.mount(part, prefix="part")
    async with open_memory(whole) as client:
        await client.call_tool("one")
        await client.call_tool("part_two")
    assert len(loops) == 1


async def test_asyncio_calls_are_rejected_while_too_many_abandoned_tasks_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_mcp.concurrency.asyncio_thread._PATIENCE", 0.05)
    server = Server("s", limits=Limits(cleanup_grace=0.01, max_abandoned_threads=1))
    started, may_end, ended = (threading.Event() for _ in range(3))

    @server.tool(asyncio=True)
    async def stubborn() -> None:
        started.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)
        ended.set()

    @server.tool(asyncio=True)
    async def fine() -> str:
        return "fine"

    async with open_memory(server) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "stubborn")
            await happened(started)
            nursery.cancel_scope.cancel(reason="enough")
        await abandoned(caplog)
        with pytest.raises(MCPError, match="Too busy"):
            await client.call_tool("fine")
        may_end.set()
        await happened(ended)
        with trio.fail_after(PATIENCE):
            while True:  # until trio's thread is told of the end
                with suppress(MCPError):
                    assert (await client.call_tool("fine")).text == "fine"
                    break


async def test_middleware_is_not_reported_as_abandoned_if_its_handler_swallows_the_cancellation(
    jump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_mcp.concurrency.asyncio_thread._PATIENCE", 0.05)
    server = Server("s", asyncio=True, limits=Limits(cleanup_grace=LONG, max_abandoned_threads=2))
    started, cancelled, may_end = (threading.Event() for _ in range(3))

    @server.middleware("tools/call")
    async def outer(request: ServerRequest, next: Next) -> Any:
        return await next(request)

    @server.middleware("tools/call")
    async def inner(request: ServerRequest, next: Next) -> Any:
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(awaited(next(request)))
        return answer.result()

    @server.tool
    async def stubborn() -> None:
        started.set()
        while not may_end.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                cancelled.set()

    @server.tool
    async def fine() -> str:
        return "fine"

    async with open_memory(server) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "stubborn")
            await happened(started)
            nursery.cancel_scope.cancel(reason="enough")
        await happened(cancelled)  # the grace of each middleware has begun, and that of the handler
        jump_clock.jump(LONG)
        await abandoned(caplog)
        assert (await client.call_tool("fine")).text == "fine", "one task counts, and two may"
        may_end.set()
    blamed = [record.getMessage() for record in caplog.records if "is abandoned: " in record.getMessage()]
    assert len(blamed) == 1
    assert "stubborn swallows" in blamed[0]


async def test_abandoned_asyncio_task_that_has_ended_is_released_at_the_next_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("s", limits=Limits(cleanup_grace=0.01))
    started, may_end, ended = (threading.Event() for _ in range(3))
    arguments: list[weakref.ref[Any]] = []

    @server.tool(asyncio=True)
    async def stubborn(numbers: Annotated[Numbers, Provide(Numbers)]) -> None:
        arguments.append(weakref.ref(numbers))
        started.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)
        ended.set()

    @server.tool(asyncio=True)
    async def fine() -> str:
        return "fine"

    async with open_memory(server) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "stubborn")
            await happened(started)
            nursery.cancel_scope.cancel(reason="enough")
        await abandoned(caplog)
        may_end.set()
        await happened(ended)
        for _ in range(5):  # the first may come before trio's thread is told of the end
            assert (await client.call_tool("fine")).text == "fine"
        gc.collect()
        assert [argument() for argument in arguments] == [None]


async def test_asyncio_generator_dependency_that_is_cancelled_while_it_opens_is_closed() -> None:
    server = Server("s")
    entering, may_enter, left = (threading.Event() for _ in range(3))

    def connect() -> Generator[str]:
        entering.set()
        may_enter.wait(PATIENCE)
        try:
            yield "connection"
        finally:
            left.set()

    @server.tool(asyncio=True)
    async def use(connection: Annotated[str, Provide(connect)]) -> str:
        return connection

    async with open_memory(server) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "use")
            await happened(entering)
            nursery.cancel_scope.cancel(reason="enough")
        await trio.sleep(0.01)
        may_enter.set()
        await happened(left)
