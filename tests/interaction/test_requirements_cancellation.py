"""CA: cancelling a request, on a virtual clock."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
import trio.lowlevel
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock

from trio_mcp import Limits, RequestContext, Server, ToolError, WorkerContext, error_result
from trio_mcp.protocol.types.tools import CallToolResult

from .memory_peer import LATEST_LEGACY, MODERN, connected, connected_twice

ERAS = pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
LIMIT = LONG / 2  # the peer itself waits for no reply as long as LONG


async def jump_once(running: threading.Event, clock: MockClock) -> None:
    """Let the limit pass as soon as a thread runs."""
    await trio.to_thread.run_sync(running.wait)
    clock.jump(LIMIT)


class Probe:
    """What happened in a handler, in order."""

    def __init__(self) -> None:
        self.events: list[Any] = []


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def server(probe: Probe) -> Server:
    server = Server("rows", "1.0.0", limits=Limits(cleanup_grace=1.0))
    events = probe.events

    @server.tool
    async def sleeper(ctx: RequestContext) -> str:
        events.append("started")
        try:
            await trio.sleep(50)
        finally:
            events.append((ctx.cancel_scope.cancel_called, ctx.is_cancelled, ctx.cancelled.is_set()))
            events.append("finaliser")
        return "never"

    @server.tool
    async def forms(ctx: RequestContext) -> str:
        """Sees its cancel in all three forms: polled, as an event, and raised."""
        with trio.CancelScope(shield=True):
            while not ctx.is_cancelled:  # noqa: ASYNC110 - polling is one of the forms
                await trio.sleep(0.01)
            events.append("polled")
        assert ctx.cancelled.is_set()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            events.append("checkpoint")
            raise
        return "never"

    @server.tool
    async def children(ctx: RequestContext) -> str:
        async def child(number: int) -> None:
            try:
                await trio.sleep_forever()
            finally:
                events.append((number, ctx.is_cancelled, ctx.cancellation and ctx.cancellation.reason))

        for number in range(3):
            ctx.nursery.start_soon(child, number)
        return "my children hold me back"

    @server.tool
    async def reports(ctx: RequestContext) -> str:
        ctx.progress(1)
        ctx.progress(2)  # kept, since it comes too soon after the first
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        return "never"

    @server.tool
    async def late(then: str, ctx: RequestContext) -> CallToolResult:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.5)
        if then == "raise":
            raise ToolError("too late")
        return error_result("Cancelled after 3 items")

    @server.tool
    async def wait(ctx: RequestContext) -> str:
        await trio.sleep(1)
        return "waited"

    return server


@ERAS
async def test_ca_01_ca_08_cancel_notification_cancels_the_request_scope_and_runs_finally_blocks(
    autojump_clock: MockClock, server: Server, probe: Probe, revision: str
) -> None:
    async with connected(server, revision) as peer:
        call = await peer.start("sleeper")
        assert probe.events == ["started"]
        await peer.cancel(call)
        assert probe.events == ["started", (True, True, True), "finaliser"]
        assert await peer.everything() == []


@ERAS
async def test_delayed_progress_of_a_request_is_not_sent_after_its_cancel(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        call = await peer.start("reports", token="t")
        assert (await peer.notification("notifications/progress"))["progress"] == 1
        await peer.cancel(call)
        assert await peer.everything() == []


@ERAS
async def test_ca_03_handler_notices_a_cancel_by_polling_and_at_checkpoints(
    autojump_clock: MockClock, server: Server, probe: Probe, revision: str
) -> None:
    async with connected(server, revision) as peer:
        call = await peer.start("forms")
        await peer.cancel(call)
        assert await peer.everything() == []
        assert probe.events == ["polled", "checkpoint"]


async def test_ca_04_thread_notices_a_cancel_through_the_cancelled_event_and_trio() -> None:
    """On the real clock, since a thread waits for nothing else: an event, and trio's own check."""
    server = Server("threads", "1.0.0")
    seen: list[str] = []
    ready, done = threading.Semaphore(0), threading.Semaphore(0)

    @server.tool
    def by_event(ctx: WorkerContext) -> str:
        ready.release()
        assert ctx.cancelled.wait(PATIENCE)
        seen.append(f"event {ctx.is_cancelled}")
        done.release()
        return "never"

    @server.tool
    def by_check(ctx: WorkerContext) -> str:
        ready.release()
        try:
            while True:
                ctx.check_cancelled()
                ctx.cancelled.wait(0.01)
        except trio.Cancelled:
            seen.append("raised")
            done.release()
            raise

    @server.tool
    def by_trio(ctx: WorkerContext) -> str:
        ready.release()
        try:
            while True:
                trio.from_thread.check_cancelled()
                ctx.cancelled.wait(0.01)
        except trio.Cancelled:
            seen.append("trio")
            done.release()
            raise

    async with connected(server) as peer:
        for tool in ("by_event", "by_check", "by_trio"):
            message = peer.call_message(tool)
            await peer.send(message)
            await trio.to_thread.run_sync(ready.acquire)
            await peer.notify("notifications/cancelled", {"requestId": message["id"]})
            await trio.to_thread.run_sync(done.acquire)
        await peer.request("ping")
        assert seen == ["event True", "raised", "trio"]
        assert len(peer.messages) == 2, "initialize and ping"


async def test_ca_04_tool_timeout_sets_the_cancelled_event_of_a_handler_thread(jump_clock: MockClock) -> None:
    server = Server("threads", "1.0.0")
    seen: list[bool] = []
    running = threading.Event()

    @server.tool(timeout=LIMIT)
    def waits(ctx: WorkerContext) -> str:
        running.set()
        seen.append(ctx.cancelled.wait(PATIENCE))
        return "late"

    async with connected(server) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(jump_once, running, jump_clock)
        result = await peer.call("waits")
        assert result["isError"] is True
        assert "limit" in result["content"][0]["text"]
        assert seen == [True]


@ERAS
@pytest.mark.parametrize("then", ["return", "raise"])
async def test_ca_05_ca_15_server_does_not_send_the_late_result_of_a_cancelled_request(
    autojump_clock: MockClock, server: Server, revision: str, then: str
) -> None:
    async with connected(server, revision) as peer:
        call = await peer.start("late", {"then": then})
        await peer.cancel(call)
        assert await peer.everything() == []


async def test_ca_06_request_context_created_without_a_request_is_never_cancelled() -> None:
    context = RequestContext()
    with trio.CancelScope() as scope:
        scope.cancel()
        await trio.lowlevel.checkpoint()
    assert context.is_cancelled is False
    assert context.cancellation is None


@ERAS
async def test_ca_07_only_the_first_cancel_of_a_request_counts_and_all_its_tasks_see_that_cancel(
    autojump_clock: MockClock, server: Server, probe: Probe, revision: str
) -> None:
    async with connected(server, revision) as peer:
        call = await peer.start("children")
        await peer.notify("notifications/cancelled", {"requestId": call, "reason": "first"})
        await peer.notify("notifications/cancelled", {"requestId": call, "reason": "second"})
        assert await peer.everything() == []
        assert sorted(probe.events) == [(number, True, "first") for number in range(3)]


async def test_ca_07_response_is_sent_after_the_child_tasks_of_the_request_end(
    server: Server, autojump_clock: MockClock
) -> None:
    @server.tool
    async def parent(ctx: RequestContext) -> str:
        ctx.nursery.start_soon(trio.sleep, 7)
        return "after my child"

    async with connected(server) as peer:
        begin = trio.current_time()
        assert await peer.text("parent") == "after my child"
        assert trio.current_time() - begin == pytest.approx(7)


async def test_ca_09_cancel_matches_only_requests_of_its_own_connection(
    autojump_clock: MockClock, server: Server
) -> None:
    async with connected_twice(server) as (first, second):
        await first.open(LATEST_LEGACY)
        await second.open(LATEST_LEGACY)
        await first.start("wait", id=1)
        await second.start("wait", id=2)
        await second.cancel(1)
        await first.cancel(2)
        assert (await first.reply(1))["result"]
        assert (await second.reply(2))["result"]


@ERAS
async def test_ca_10_request_ids_1_and_string_1_do_not_collide(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        await peer.start("wait", id=1)
        await peer.start("wait", id="1")
        await peer.cancel(1)
        assert [m["id"] for m in await peer.everything()] == ["1"]


@ERAS
async def test_ca_12_cancelled_request_that_ends_does_not_affect_a_new_request_with_the_same_id(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        await peer.start("late", {"then": "return"}, id=1)
        await peer.cancel(1)
        await peer.start("wait", id=1)
        (reply,) = await peer.everything()
        assert reply["result"]["content"][0]["text"] == "waited"


@ERAS
async def test_ca_13_cancels_are_handled_while_handlers_run(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        calls = [await peer.start("sleeper") for _ in range(5)]
        begin = trio.current_time()
        for call in calls:
            await peer.cancel(call)
        assert trio.current_time() == begin
        assert await peer.text("wait") == "waited"


async def test_ca_08_handler_that_cancels_its_own_scope_is_answered_with_an_error(
    autojump_clock: MockClock, server: Server
) -> None:
    """Only the peer's cancel is never answered: a handler that cancels its own scope owes an answer."""

    @server.tool
    async def suicidal(ctx: RequestContext) -> str:
        ctx.cancel_scope.cancel()
        await trio.sleep(1)
        return "never"

    async with connected(server) as peer:
        assert (await peer.error("suicidal"))["code"] == -32603


async def test_ca_02_tool_timeout_returns_an_error_and_the_handler_sees_cancel_cause_deadline(
    autojump_clock: MockClock, server: Server, probe: Probe
) -> None:
    @server.tool(timeout=2)
    async def slow(ctx: RequestContext) -> str:
        try:
            await trio.sleep(10)
        finally:
            assert ctx.cancellation is not None
            probe.events.append(ctx.cancellation.cause)
        return "never"

    async with connected(server) as peer:
        begin = trio.current_time()
        result = await peer.call("slow")
        assert result["isError"] is True
        assert trio.current_time() - begin == pytest.approx(2)
        assert probe.events == ["deadline"]


async def test_ca_08_cancel_cause_is_shutdown_after_a_close_and_parent_if_the_server_is_cancelled(
    autojump_clock: MockClock, server: Server, probe: Probe
) -> None:
    @server.tool
    async def why(ctx: RequestContext) -> str:
        try:
            await trio.sleep_forever()
        finally:
            probe.events.append(ctx.cancellation and ctx.cancellation.cause)
        return "never"

    async with connected_twice(server) as (first, second):
        await first.open(LATEST_LEGACY)
        await second.open(LATEST_LEGACY)
        await first.start("why")
        await first.close()
        await trio.sleep(30)  # beyond the time to drain
        assert probe.events == ["shutdown"]
        await second.start("why")
    assert probe.events == ["shutdown", "parent"]


async def test_ca_03_thread_that_polls_notices_the_tool_timeout(jump_clock: MockClock) -> None:
    server = Server("threads", "1.0.0")
    seen: list[Any] = []
    running = threading.Event()

    @server.tool(timeout=LIMIT)
    def polls(ctx: WorkerContext) -> str:
        running.set()
        while not ctx.is_cancelled:
            threading.Event().wait(0.005)
        seen.append(ctx.cancellation and ctx.cancellation.cause)
        return "late"

    async with connected(server) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(jump_once, running, jump_clock)
        assert (await peer.call("polls"))["isError"] is True
        assert seen == ["deadline"]


async def test_ca_04_tool_timeout_cancels_threads_started_by_an_async_handler(jump_clock: MockClock) -> None:
    """The thread is not to be abandoned, so trio waits for it, and the event alone can end it."""
    server = Server("threads", "1.0.0")
    seen: list[bool] = []
    running = threading.Event()

    @server.tool(timeout=LIMIT)
    async def delegates(ctx: RequestContext) -> str:
        def wait() -> bool:
            running.set()
            return ctx.cancelled.wait(PATIENCE)

        seen.append(await trio.to_thread.run_sync(wait))
        await trio.lowlevel.checkpoint()
        return "late"

    async with connected(server) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(jump_once, running, jump_clock)
        assert (await peer.call("delegates"))["isError"] is True
        assert seen == [True]
