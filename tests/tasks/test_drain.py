"""The end of a server: what becomes of its tasks, while its connections end."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.tasks.callers import Caller, calling, settings
from tests.tasks.touchy_store import TouchyStore, record_in
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, CodedError, ConnectionLost, RequestContext, Server, WorkerContext
from trio_mcp.client.opening import open_client
from trio_mcp.concurrency.contexts import asynccontextmanager
from trio_mcp.runtime.limits import Limits
from trio_mcp.server.servable import connection_to, end_tasks
from trio_mcp.serving.process import _serve
from trio_mcp.stores import SQLiteTaskStore
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import TaskPhase, TaskStore
from trio_mcp.transports.lines import memory_transport_pair


class Ends:
    """What tools see of the end."""

    def __init__(self) -> None:
        self.causes: list[tuple[str, CancelCause, float]] = []

    def server(self, store: TaskStore | None, **limits: Any) -> Server:
        """A server with a tool of each kind."""
        server = Server("ending", tasks=settings(store), limits=Limits(**limits))

        async def run(name: str, seconds: float, ctx: RequestContext) -> str:
            if ctx.task is not None:
                await ctx.task.start()
            try:
                await trio.sleep(seconds)
            except trio.Cancelled:
                assert ctx.cancellation is not None
                self.causes.append((name, ctx.cancellation.cause, trio.current_time()))
                raise
            return "done"

        @server.tool(task="required")
        async def once(seconds: float, ctx: RequestContext) -> str:
            return await run("once", seconds, ctx)

        @server.tool(task="required", on_restart="again")
        async def again(seconds: float, ctx: RequestContext) -> str:
            return await run("again", seconds, ctx)

        @server.tool
        async def plain(seconds: float, ctx: RequestContext) -> str:
            return await run("plain", seconds, ctx)

        return server


@asynccontextmanager
async def over_stdio(server: Server) -> AsyncGenerator[Caller]:
    """Serve as `serve_stdio` does, to a client that closes the connection when the block is left."""
    ours, theirs = memory_transport_pair()

    async def serve() -> None:
        await _serve(server, theirs, stateless=False, handle_signals=False)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_client(ours, era="modern") as client:
            yield Caller(client)


async def test_task_that_ends_within_the_drain_timeout_at_shutdown_keeps_its_result(autojump_clock: MockClock) -> None:
    store, ends = MemoryTaskStore(), Ends()
    async with over_stdio(ends.server(store)) as caller:
        task_id = await caller.start("once", seconds=1.5)
    record = await record_in(store, task_id)
    assert record.outcome is not None
    assert b"done" in record.outcome.json


async def test_task_that_runs_longer_than_the_drain_timeout_fails_with_a_message_about_the_shutdown(
    autojump_clock: MockClock,
) -> None:
    store, ends = MemoryTaskStore(), Ends()
    async with over_stdio(ends.server(store)) as caller:
        task_id = await caller.start("once", seconds=60)
        end = trio.current_time()
    assert ends.causes == [("once", CancelCause.SHUTDOWN, end + 2)]
    record = await record_in(store, task_id)
    assert record.phase is TaskPhase.ENDED
    assert record.outcome is not None
    assert b"the server was shut down while the task was running" in record.outcome.json


async def test_server_that_shuts_down_releases_restartable_tasks_to_other_servers_immediately(
    autojump_clock: MockClock,
) -> None:
    store, ends = MemoryTaskStore(), Ends()
    async with over_stdio(ends.server(store)) as caller:
        task_id = await caller.start("again", seconds=60)
        end = trio.current_time()
    assert ends.causes == [("again", CancelCause.SHUTDOWN, end)]
    record = await record_in(store, task_id)
    assert (record.phase, record.holder, record.leased_until) == (TaskPhase.WORKING, None, 0)


async def test_task_that_a_server_releases_at_shutdown_immediately_runs_on_another_server(
    autojump_clock: MockClock,
) -> None:
    store, ends, others = MemoryTaskStore(), Ends(), Ends()
    async with over_stdio(ends.server(store)) as caller:
        task_id = await caller.start("again", seconds=60)
    begun = trio.current_time()
    async with calling(others.server(store)) as other:
        await other.final(task_id)
        assert trio.current_time() < begun + 61


async def test_restartable_task_without_a_store_can_run_until_the_drain_timeout(autojump_clock: MockClock) -> None:
    ends = Ends()
    async with over_stdio(ends.server(None)) as caller:
        await caller.start("again", seconds=60)
        end = trio.current_time()
    assert ends.causes == [("again", CancelCause.SHUTDOWN, end + 2)]


async def lost(caller: Caller) -> None:
    """Call the tool that is no task, in vain."""
    with pytest.raises(ConnectionLost):
        await caller.call("plain", seconds=60)


async def test_tasks_and_requests_without_a_task_are_cancelled_at_the_same_drain_timeout(
    autojump_clock: MockClock,
) -> None:
    store, ends = MemoryTaskStore(), Ends()
    ours, theirs = memory_transport_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(_serve, ends.server(store), theirs, stateless=False, handle_signals=False))
        async with open_client(ours, era="modern") as client:
            caller = Caller(client)
            await caller.start("once", seconds=60)
            nursery.start_soon(lost, caller)
            await wait_all_tasks_blocked()
            end = trio.current_time()
            theirs._incoming.closed = True  # the end of input; our replies still go out
            theirs._incoming.changed.unpark_all()
            await trio.sleep(2.5)
    assert sorted(ends.causes) == [("once", CancelCause.SHUTDOWN, end + 2), ("plain", CancelCause.SHUTDOWN, end + 2)]


async def test_second_shutdown_signal_cancels_tasks_immediately(autojump_clock: MockClock) -> None:
    store, ends = MemoryTaskStore(), Ends()
    async with ends.server(store)._running() as running, trio.open_nursery() as nursery:
        ours, theirs = memory_transport_pair()
        nursery.start_soon(connection_to(running, theirs).run)
        async with open_client(ours, era="modern") as client:
            await Caller(client).start("once", seconds=60)
        end_tasks(running, hurry=False)
        await trio.sleep(0.5)
        end_tasks(running, hurry=True)
        end = trio.current_time()
    assert ends.causes == [("once", CancelCause.SHUTDOWN, end)]


async def test_call_that_becomes_a_task_during_shutdown_is_refused(autojump_clock: MockClock) -> None:
    store, late = TouchyStore(slowness=0.5), list[Exception]()
    server, may_start = Server("late", tasks=settings(store)), trio.Event()

    @server.tool(task="optional")
    async def work(ctx: RequestContext) -> None:
        assert ctx.task is not None
        await may_start.wait()
        try:
            await ctx.task.start()
        except CodedError as error:
            late.append(error)

    async with server._running() as running, trio.open_nursery() as nursery:
        ours, theirs = memory_transport_pair()
        nursery.start_soon(connection_to(running, theirs).run)
        async with open_client(ours, era="modern") as client:
            nursery.start_soon(Caller(client).call, "work")
            may_start.set()
            await wait_all_tasks_blocked()
            end_tasks(running, hurry=False)  # while the record is being written
            await trio.sleep(10)
    assert [error.code for error in late] == [-31000]
    assert list(await store.store.page("", None, 10)) == []


@pytest.mark.parametrize("cancel", [True, False])
async def test_cancelled_server_stores_the_outcome_of_each_task(autojump_clock: MockClock, cancel: bool) -> None:
    store, ends = MemoryTaskStore(), Ends()
    tasks: list[str] = []
    with trio.CancelScope() as scope, suppress(RuntimeError):
        async with calling(ends.server(store)) as caller:
            tasks.append(await caller.start("once", seconds=60))
            tasks.append(await caller.start("again", seconds=60))
            begun = trio.current_time()
            if not cancel:
                raise RuntimeError("a defect around the server")
            scope.cancel(reason="Ctrl-C")
            await trio.sleep_forever()
    assert trio.current_time() == begun
    assert {cause for _, cause, _ in ends.causes} == {CancelCause.SHUTDOWN}
    once, again = [await record_in(store, each) for each in tasks]
    assert once.phase is TaskPhase.ENDED
    assert (again.phase, again.holder) == (TaskPhase.WORKING, None)


async def test_task_store_that_fails_delays_shutdown_for_a_limited_time(autojump_clock: MockClock) -> None:
    store, ends = TouchyStore(), Ends()
    async with over_stdio(ends.server(store)) as caller:
        for _ in range(10):
            await caller.start("once", seconds=60)
        store.die()
        end = trio.current_time()
    assert trio.current_time() <= end + 2 + 2


async def test_blocked_thread_of_a_task_is_abandoned_at_the_drain_timeout(jump_clock: MockClock) -> None:
    store, begun, release = MemoryTaskStore(), threading.Event(), threading.Event()
    server = Server("threads", tasks=settings(store), limits=Limits(cleanup_grace=1e6))

    @server.tool(task="required")
    def block(ctx: WorkerContext) -> None:
        assert ctx.task is not None
        ctx.task.start()
        begun.set()
        release.wait(60)

    async with server._running() as running, trio.open_nursery() as nursery:
        ours, theirs = memory_transport_pair()
        nursery.start_soon(connection_to(running, theirs).run)
        async with open_client(ours, era="modern") as client:
            task_id = await Caller(client).start("block")
            await trio.to_thread.run_sync(begun.wait)
        jump_clock.rate = 100.0
    release.set()
    record = await record_in(store, task_id)
    assert record.phase is TaskPhase.ENDED


@pytest.mark.parametrize("tool", ["once", "again"])
@pytest.mark.parametrize("is_cut_off", [False, True])
async def test_outcomes_of_hundreds_of_tasks_that_end_together_are_stored_in_few_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, is_cut_off: bool
) -> None:
    monkeypatch.setattr("trio_mcp.tasks.record_writers._LAST_WRITES", PATIENCE)  # whatever else the machine does
    async with SQLiteTaskStore(tmp_path / "tasks.db") as store:
        statements = list[str]()
        database: Any = store._database
        await database.write(lambda connection: connection.set_trace_callback(statements.append))
        ends = Ends()
        with trio.CancelScope() as scope:
            server = ends.server(store, drain_timeout=0.01)
            async with calling(server) as caller:
                async with trio.open_nursery() as nursery:
                    for _ in range(400):
                        nursery.start_soon(partial(caller.start, tool, seconds=1000))
                statements.clear()
                if is_cut_off:
                    scope.cancel()
        records = await store.page("", None, 2000)
        assert len(records) == len(ends.causes) == 400
        assert {record.phase.is_final for record in records} == {tool == "once"}
        assert {record.holder for record in records} == {None}
        assert statements.count("BEGIN IMMEDIATE") <= 20
