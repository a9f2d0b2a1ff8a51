"""Plain def handlers, in threads."""

from __future__ import annotations

import threading
from typing import Any, Literal

import pytest
import trio
import trio.testing
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock

from trio_mcp import CancelCause, Limits, PeerError, Progress, RequestContext, Server, WorkerContext, open_memory
from trio_mcp.types import CreateMessageResult, TextContent


async def test_sync_handler_in_a_thread_can_observe_its_cancellation_and_end() -> None:
    server, started, ended = Server("s"), trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()
    causes = list[CancelCause]()

    @server.tool
    def spin(ctx: WorkerContext) -> None:
        token.run_sync_soon(started.set)
        try:
            ctx.cancelled.wait()
            ctx.check_cancelled()
        finally:
            causes.append(ctx.cancellation.cause)
            ended.set()

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "spin")
        await started.wait()
        nursery.cancel_scope.cancel()
    assert ended.is_set()
    assert causes == [CancelCause.PEER]


async def test_thread_that_ignores_its_cancellation_is_abandoned_after_cleanup_grace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, started, release = Server("s", limits=Limits(cleanup_grace=0.05)), trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    @server.tool
    def deaf(word: str) -> None:
        token.run_sync_soon(started.set)
        release.wait()

    try:
        with trio.fail_after(PATIENCE):
            async with open_memory(server) as client:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.call_tool, "deaf", {"word": "open sesame"})
                    await started.wait()
                    nursery.cancel_scope.cancel()
                await client.ping()
        assert "a thread that did not end within 0.05 s of its cancel is abandoned" in caplog.text
        assert "deaf" in caplog.text
        assert "sesame" not in caplog.text, "what it was called with is nobody's business"
    finally:
        release.set()


async def test_sync_handler_in_a_thread_can_report_progress_log_and_request_roots() -> None:
    server, seen = Server("s"), list[Progress]()
    logs = list[object]()

    @server.tool
    def work(ctx: WorkerContext) -> str:
        ctx.progress(1, 2, "half")
        ctx.log.warning({"step": 1}, logger="work")
        return ", ".join(root.uri for root in ctx.list_roots())

    from trio_mcp.types import Root, TextContent

    roots = [Root("file:///a")]
    async with open_memory(server, era="legacy", roots=roots, on_log=lambda log: logs.append(log.data)) as client:
        result = await client.call_tool("work", on_progress=seen.append)
    assert result.content == [TextContent("file:///a")]
    assert seen == [Progress(1, 2, "half")]
    assert logs == [{"step": 1}]


@pytest.mark.parametrize("timeout", [None, LONG])
async def test_call_cancelled_while_its_thread_waits_for_an_elicitation_cancels_the_elicitation(
    timeout: float | None, jump_clock: MockClock
) -> None:
    server, asked, left, ended = Server("s"), trio.Event(), trio.Event(), threading.Event()

    @server.tool(timeout=timeout)
    def work(ctx: WorkerContext) -> None:
        try:
            ctx.sample("?", max_tokens=1)
        except trio.Cancelled:
            ended.set()
            raise

    async def sampling(_: object) -> CreateMessageResult:
        asked.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    with trio.fail_after(LONG + PATIENCE):
        async with open_memory(server, era="legacy", sampling=sampling) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "work")
            await asked.wait()
            if timeout is None:
                nursery.cancel_scope.cancel()
            else:
                jump_clock.jump(timeout)
            with trio.CancelScope(shield=True):
                await left.wait()
                await trio.to_thread.run_sync(ended.wait, PATIENCE)
    assert ended.is_set()


async def test_number_of_worker_threads_is_limited() -> None:
    server = Server("s", limits=Limits(worker_threads=2))
    barrier, running, most = threading.Barrier(2), 0, 0
    lock = threading.Lock()

    @server.tool
    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait(PATIENCE)
        with lock:
            running -= 1

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(client.call_tool, "work")
    assert most == 2


async def test_call_cancelled_while_it_waits_for_a_worker_thread_never_runs() -> None:
    server, release, ran = Server("s", limits=Limits(worker_threads=1)), threading.Event(), list[int]()
    started = trio.Event()
    token = trio.lowlevel.current_trio_token()

    @server.tool
    def work(number: int) -> None:
        ran.append(number)
        token.run_sync_soon(started.set)
        release.wait(PATIENCE)

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "work", {"number": 1})
        await started.wait()
        with trio.move_on_after(0.05):
            await client.call_tool("work", {"number": 2})
        await client.ping()  # the cancel has arrived before this
        release.set()
    assert ran == [1]


ERAS: list[Literal["legacy", "modern"]] = ["legacy", "modern"]


@pytest.mark.parametrize("era", ERAS)
async def test_threads_that_wait_for_elicitations_do_not_block_other_calls(
    era: Literal["legacy", "modern"],
) -> None:
    server = Server("s", limits=Limits(worker_threads=2, max_asking_threads=4))
    asked, answer = trio.Event(), trio.Event()
    waiting = 0

    @server.tool
    def order(ctx: WorkerContext) -> str:
        return ctx.elicit("Really?", {"type": "object", "properties": {}}).action

    @server.tool
    def echo(text: str) -> str:
        return text

    async def think(_: Any) -> dict[str, Any]:
        nonlocal waiting
        waiting += 1
        if waiting == 4:
            asked.set()
        await answer.wait()
        return {}

    results: list[str] = []
    async with open_memory(server, era=era, elicitation=think) as client, trio.open_nursery() as nursery:

        async def call() -> None:
            results.append((await client.call_tool("order")).text)

        for _ in range(4):
            nursery.start_soon(call)
        with trio.fail_after(PATIENCE):
            await asked.wait()
            assert (await client.call_tool("echo", {"text": "still here"})).text == "still here"
            with pytest.raises(PeerError, match="too many handlers in threads wait for answers") as caught:
                await client.call_tool("order")
            assert caught.value.code == -31000
            answer.set()
    assert results == ["accept"] * 4


async def test_thread_waits_for_a_free_worker_slot_after_its_elicitation_is_answered() -> None:
    server = Server("s", limits=Limits(worker_threads=1))
    asked, answer, going_on = trio.Event(), trio.Event(), threading.Event()
    busy, release = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    @server.tool
    def order(ctx: WorkerContext) -> None:
        ctx.elicit("Really?", {"type": "object", "properties": {}})
        going_on.set()

    @server.tool
    def work() -> bool:
        token.run_sync_soon(busy.set)
        release.wait(PATIENCE)
        return going_on.is_set()

    async def think(_: Any) -> dict[str, Any]:
        asked.set()
        await answer.wait()
        return {}

    async with open_memory(server, era="legacy", elicitation=think) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "order")
        await asked.wait()

        async def call() -> None:
            assert (await client.call_tool("work")).text == "false"

        nursery.start_soon(call)
        await busy.wait()
        answer.set()
        await client.ping()
        await trio.testing.wait_all_tasks_blocked()
        release.set()
    assert going_on.is_set()


@pytest.mark.parametrize("era", ERAS)
async def test_thread_cancelled_during_an_elicitation_releases_its_worker_slot(
    era: Literal["legacy", "modern"],
) -> None:
    server = Server("s", limits=Limits(worker_threads=1, max_asking_threads=1))

    @server.tool
    def order(ctx: WorkerContext) -> None:
        ctx.elicit("Really?", {"type": "object", "properties": {}})

    @server.tool
    def echo(text: str) -> str:
        return text

    async def think(_: Any) -> dict[str, Any]:
        asked.set()
        return await trio.sleep_forever()

    async with open_memory(server, era=era, elicitation=think) as client:
        for _ in range(3):
            asked = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "order")
                await asked.wait()
                nursery.cancel_scope.cancel()
            with trio.fail_after(PATIENCE):
                assert (await client.call_tool("echo", {"text": "x"})).text == "x"
                while server.statistics().in_flight or server.statistics().parked:
                    await client.ping()


async def test_sync_handler_in_a_thread_can_send_raw_requests() -> None:
    server = Server("s")

    @server.tool
    def ask(ctx: WorkerContext) -> list[Any]:
        form = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
        say = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 1}
        return [ctx.list_roots_raw()["roots"], ctx.elicit_raw(form)["action"], ctx.sample_raw(say)["model"]]

    def model(_: Any) -> CreateMessageResult:
        return CreateMessageResult("assistant", TextContent("ho"), "m")

    async with open_memory(server, roots=[], elicitation=lambda _: {}, sampling=model) as client:
        assert (await client.call_tool("ask")).structured_content == {"result": [[], "accept", "m"]}


def test_context_created_without_a_request_has_no_progress_or_client_capabilities() -> None:
    context = RequestContext()
    assert not context.is_cancelled
    assert not context.progress(1)
    assert not context.client_supports("sampling")
