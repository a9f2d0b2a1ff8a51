"""Plain def handlers, in threads."""

from __future__ import annotations

import threading

import pytest
import trio
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock

from trio_mcp import (
    CancelCause,
    CreateMessageResult,
    Limits,
    Progress,
    RequestContext,
    Server,
    WorkerContext,
    open_memory,
)


async def test_a_thread_sees_the_cancel_and_ends() -> None:
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


async def test_a_thread_that_never_looks_is_abandoned_after_the_grace(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_a_thread_reports_progress_and_logs_and_asks() -> None:
    server, seen = Server("s"), list[Progress]()
    logs = list[object]()

    @server.tool
    def work(ctx: WorkerContext) -> str:
        ctx.progress(1, 2, "half")
        ctx.log.warning({"step": 1}, logger="work")
        return ", ".join(root.uri for root in ctx.list_roots())

    from trio_mcp import Root, TextContent

    roots = [Root("file:///a")]
    async with open_memory(server, era="legacy", roots=roots, on_log=lambda log: logs.append(log.data)) as client:
        result = await client.call_tool("work", on_progress=seen.append)
    assert result.content == [TextContent("file:///a")]
    assert seen == [Progress(1, 2, "half")]
    assert logs == [{"step": 1}]


@pytest.mark.parametrize("timeout", [None, LONG])
async def test_a_thread_that_waits_for_an_answer_is_cancelled_and_so_is_its_question(
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


async def test_threads_are_bounded() -> None:
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


async def test_a_thread_waiting_for_its_turn_never_starts_once_cancelled() -> None:
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


def test_a_passive_context_asks_nobody() -> None:
    context = RequestContext()
    assert not context.is_cancelled
    assert not context.progress(1)
    assert not context.client_supports("sampling")
