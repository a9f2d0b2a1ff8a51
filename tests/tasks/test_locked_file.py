"""The file of the tasks is locked for longer than a lease, by a backup for example. Nobody loses anything by that."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from tests.patience import PATIENCE
from tests.tasks.callers import calling, settings
from tests.tasks.touchy_store import TouchyStore, record_in
from trio.testing import MockClock

from trio_mcp import CancelCause, RequestContext, Server
from trio_mcp.stores import SQLiteTaskStore
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import TaskStore

LEASE = 0.9


class Work:
    """Runs of a tool that goes on until it is told to end."""

    def __init__(self) -> None:
        self.end = trio.Event()
        self.runs = 0
        self.causes: list[CancelCause] = []

    def server(self, store: TaskStore, lease: float = LEASE) -> Server:
        server = Server("locked", tasks=settings(store, lease=lease, look_interval=lease / 3))

        @server.tool(task="required")
        async def work(ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            self.runs += 1
            try:
                await self.end.wait()
            except trio.Cancelled:
                assert ctx.cancellation is not None
                self.causes.append(ctx.cancellation.cause)
                raise
            return "done"

        return server


@asynccontextmanager
async def locked(path: Path) -> AsyncGenerator[None]:
    """Lock the file while inside."""
    connection = await trio.to_thread.run_sync(
        partial(sqlite3.connect, path, isolation_level=None, check_same_thread=False)
    )
    await trio.to_thread.run_sync(connection.execute, "BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


@pytest.mark.parametrize(("others", "busy_timeout"), [(0, 10.0), (2, 0.1), (2, 10.0)])
async def test_non_restartable_task_continues_while_the_store_file_is_locked(
    tmp_path: Path, others: int, busy_timeout: float
) -> None:
    path, work = tmp_path / "tasks.db", Work()

    def store() -> SQLiteTaskStore:
        return SQLiteTaskStore(path, poll_interval=0.1, busy_timeout=busy_timeout)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:

            async def serve(task_status: trio.TaskStatus[None]) -> None:
                async with calling(work.server(store())):
                    task_status.started()
                    await trio.sleep_forever()

            async with calling(work.server(store())) as caller:
                # Before the others write: a commit of theirs may take longer than a short timeout on a busy machine.
                tasks = [await caller.start("work") for _ in range(5)]
                for _ in range(others):
                    await nursery.start(lambda task_status: serve(task_status))
                async with locked(path):
                    await trio.sleep(2 * LEASE)
                await trio.sleep(1.5 * LEASE)
                work.end.set()
                for task_id in tasks:
                    await caller.final(task_id)
                    assert await caller.text(task_id) == "done"
            nursery.cancel_scope.cancel()
    assert (work.runs, work.causes) == (5, [])


async def test_non_restartable_task_continues_during_a_store_outage(autojump_clock: MockClock) -> None:
    work, store = Work(), TouchyStore()
    async with calling(work.server(store, 30.0)) as caller:
        task_id = await caller.start("work")
        store.die()
        await trio.sleep(300)
        work.end.set()
        await trio.sleep(60)
        store.fails.clear()
        await caller.final(task_id)
        assert await caller.text(task_id) == "done"
    assert (work.runs, work.causes) == (1, [])


async def test_task_that_another_process_marked_as_failed_is_cancelled_when_the_store_is_back(
    autojump_clock: MockClock,
) -> None:
    """Only this process had lost the store."""
    memory, work, others = MemoryTaskStore(), Work(), Work()
    store = TouchyStore(memory)
    async with calling(work.server(store, 30.0)) as caller, calling(others.server(memory, 30.0)):
        task_id = await caller.start("work")
        store.die()
        await trio.sleep(60)
        assert (await record_in(memory, task_id)).outcome is not None
        assert work.causes == []
        store.fails.clear()
        await trio.sleep(15)
        assert work.causes == [CancelCause.LEASE]
    assert (work.runs, others.runs) == (1, 0)
