"""`RequestContext.cancellation` is set before the handler sees the cancel, whoever cancelled it."""

from __future__ import annotations

import threading

import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp import CancelCause, Cancellation, RequestContext, Server, WorkerContext
from trio_mcp.server.connection import ServerConnection
from trio_mcp.transports.lines import memory_transport_pair

from .memory_peer import MemoryPeer, connected

ENOUGH = 30
"""trio runs tasks that are ready together in one of two orders, at random."""


async def seen_when_left(together: bool) -> Cancellation | None:
    """What a handler sees when its connection ends in the moment in which the application leaves."""
    server, seen = Server("s"), list[Cancellation | None]()

    @server.tool
    async def work(ctx: RequestContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            seen.append(ctx.cancellation)

    ours, theirs = memory_transport_pair()
    async with server._running() as running, trio.open_nursery() as nursery:
        connection = ServerConnection(running, theirs)
        await nursery.start(connection.run)
        peer = MemoryPeer(ours)
        await peer.open("2025-11-25")
        await peer.start("work")
        if together:
            connection.connection.shut_down("the server ends")
            nursery.cancel_scope.cancel()
        else:
            ended = trio.Event()

            async def leave() -> None:
                await ended.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(leave)
            await wait_all_tasks_blocked()
            ended.set()
            await peer.close()
    (cancellation,) = seen
    return cancellation


@pytest.mark.parametrize("together", [True, False], ids=["a shutdown", "the end of input"])
async def test_cancel_cause_is_parent_if_the_application_cancels_a_connection_that_is_ending(
    together: bool,
) -> None:
    for _ in range(ENOUGH):
        cancellation = await seen_when_left(together)
        assert cancellation is not None
        assert cancellation.cause is CancelCause.PARENT


async def test_request_that_is_read_while_the_application_is_cancelled_never_runs() -> None:
    for _ in range(ENOUGH):
        server, began = Server("s"), list[str]()

        @server.tool
        async def work(began: list[str] = began) -> None:
            began.append("work")

        ours, theirs = memory_transport_pair()
        async with server._running() as running, trio.open_nursery() as nursery:
            connection = ServerConnection(running, theirs)
            await nursery.start(connection.run)
            peer = MemoryPeer(ours)
            await peer.open("2025-11-25")
            await wait_all_tasks_blocked()
            await peer.send(peer.call_message("work"))
            nursery.cancel_scope.cancel()
        assert began == []


@pytest.mark.parametrize("reason", ["I have seen enough", None])
async def test_handler_that_cancels_its_own_scope_sees_the_cause_parent_and_the_reason_it_gave(
    reason: str | None,
) -> None:
    server, seen = Server("s"), list[Cancellation | None]()

    @server.tool
    async def work(ctx: RequestContext) -> None:
        assert ctx.cancellation is None
        ctx.nursery.start_soon(note, ctx)
        await wait_all_tasks_blocked()
        ctx.cancel_scope.cancel(reason=reason)
        assert ctx.is_cancelled
        assert ctx.cancelled.is_set()
        await note(ctx)

    async def note(ctx: RequestContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            seen.append(ctx.cancellation)

    async with connected(server) as peer:
        assert (await peer.error("work"))["message"] == "The request was cancelled by its own handler"
    for cancellation in seen:
        assert cancellation is not None
        assert (cancellation.cause, cancellation.reason) == (CancelCause.PARENT, reason)
    assert len(seen) == 2


async def test_child_tasks_of_a_failed_handler_see_cancel_reason_handler_failed() -> None:
    server, seen = Server("s"), list[Cancellation | None]()

    @server.tool
    async def work(ctx: RequestContext) -> None:
        async def wait() -> None:
            try:
                await trio.sleep_forever()
            finally:
                seen.append(ctx.cancellation)

        ctx.nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        raise ValueError

    async with connected(server) as peer:
        await peer.send(call := peer.call_message("work"))
        await peer.reply(call["id"])
    (cancellation,) = seen
    assert cancellation is not None
    assert (cancellation.cause, cancellation.reason) == (CancelCause.PARENT, "the handler failed")


async def test_handler_thread_sees_that_its_request_scope_is_cancelled() -> None:
    server, seen = Server("s"), list[Cancellation | None]()

    @server.tool
    def work(ctx: WorkerContext) -> None:
        assert not ctx.is_cancelled
        trio.from_thread.run_sync(lambda: ctx.cancel_scope.cancel(reason="enough"))
        seen.append(ctx.cancellation)
        assert ctx.is_cancelled
        assert isinstance(ctx.cancelled, threading.Event)
        ctx.check_cancelled()

    async with connected(server) as peer:
        with trio.fail_after(PATIENCE):
            assert "error" in await peer.request("tools/call", {"name": "work", "arguments": {}})
    (cancellation,) = seen
    assert cancellation is not None
    assert (cancellation.cause, cancellation.reason) == (CancelCause.PARENT, "enough")


async def test_cancelled_event_wakes_thread_when_handler_cancels_its_scope() -> None:
    server, woken = Server("s"), list[bool]()

    @server.tool
    async def work(ctx: RequestContext) -> None:
        async def cancel() -> None:
            await waiting.wait()
            ctx.cancel_scope.cancel(reason="enough")

        def wait(event: threading.Event) -> None:
            trio.from_thread.run_sync(waiting.set)
            woken.append(event.wait(PATIENCE))

        waiting = trio.Event()
        ctx.nursery.start_soon(cancel)
        await trio.to_thread.run_sync(wait, ctx.cancelled)

    async with connected(server) as peer:
        assert (await peer.error("work"))["message"] == "The request was cancelled by its own handler"
    assert woken == [True]


async def test_cancelled_event_wakes_thread_when_another_task_of_handler_fails() -> None:
    server, woken = Server("s"), list[bool]()

    @server.tool
    async def work(ctx: RequestContext) -> None:
        async def fail() -> None:
            await waiting.wait()
            raise ValueError

        def wait(event: threading.Event) -> None:
            trio.from_thread.run_sync(waiting.set)
            woken.append(event.wait(PATIENCE))

        waiting = trio.Event()
        ctx.nursery.start_soon(fail)
        await trio.to_thread.run_sync(wait, ctx.cancelled)

    async with connected(server) as peer:
        await peer.send(call := peer.call_message("work"))
        await peer.reply(call["id"])
    assert woken == [True]


async def test_cancelled_event_wakes_a_sync_handler_when_its_scope_is_cancelled() -> None:
    server, woken = Server("s"), list[bool]()

    @server.tool
    def work(ctx: WorkerContext) -> None:
        event = ctx.cancelled
        trio.from_thread.run_sync(lambda: ctx.cancel_scope.cancel())
        woken.append(event.wait(PATIENCE))
        ctx.check_cancelled()

    async with connected(server) as peer:
        assert "error" in await peer.request("tools/call", {"name": "work", "arguments": {}})
    assert woken == [True]


@pytest.mark.parametrize("late", [False, True], ids=["while it runs", "after it has returned"])
async def test_reading_the_cancelled_event_does_not_block_the_handler(late: bool) -> None:
    server = Server("s")

    @server.tool
    async def work(ctx: RequestContext) -> str:
        async def look() -> None:
            await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
            assert not ctx.cancelled.is_set()

        if late:
            ctx.nursery.start_soon(look)
        else:
            assert not ctx.cancelled.is_set()
        return "done"

    async with connected(server) as peer:
        with trio.fail_after(PATIENCE):
            assert (await peer.call("work"))["content"][0]["text"] == "done"
