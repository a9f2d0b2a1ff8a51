"""A process that is stopped for longer than its lease, as by SIGSTOP, and goes on: by itself it has lost nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import trio
from tests.patience import PATIENCE
from tests.restarts.killing import Process
from tests.tasks.touchy_store import record_in

from trio_mcp.stores import SQLiteTaskStore
from trio_mcp.testing.stores.task_store_records import wait_past

LEASE = 9.0
"""Seconds. The process has a third of that for asking the store when it goes on, which may take a while on a busy
machine; then it gives its tasks up."""


async def test_process_that_uses_a_store_alone_continues_its_tasks_after_sigstop_and_sigcont(tmp_path: Path) -> None:
    (tmp_path / "told").touch()
    process = Process(tmp_path, LEASE)
    try:
        with trio.fail_after(PATIENCE):
            await process.start("again", LEASE + 3)
            await process.reading.receive_some()  # the answer: the task is kept
            async with SQLiteTaskStore(tmp_path / "tasks.db") as store:
                (task,) = await store.page("", None, 9)
                os.kill(process.process.pid, signal.SIGSTOP)
                task = await record_in(store, task.id)
                await wait_past(store, task, task.leased_until + 200)
                os.kill(process.process.pid, signal.SIGCONT)
                while (task := await record_in(store, task.id)).outcome is None:  # noqa: ASYNC110 - of another process
                    await trio.sleep(0.05)
        assert b"again" in task.outcome.json
        # It may have been quick to claim its own task again, before it renewed the lease; the run goes on either way.
        assert task.attempt == 1
        assert (tmp_path / "told").read_text().count(" runs") == 1
    finally:
        process.kill()
        await process.aclose()
