"""Processes that are told to end, as hosts and systems tell them, and what their file of tasks says then."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.forked import Forked
from tests.restarts.killing import META
from tests.tasks.callers import Caller
from tests.tasks.touchy_store import record_in

from trio_mcp import open_http
from trio_mcp.stores import SQLiteTaskStore
from trio_mcp.stores.task_store import TaskPhase

SERVER = Path(__file__).with_name("ending_server.py")


def started(path: Path, how: str) -> tuple[Forked, trio.lowlevel.FdStream, trio.lowlevel.FdStream]:
    """A process, its input and its output."""
    stdin, ours = os.pipe()
    output, stdout = os.pipe()
    process = Forked([str(SERVER), str(path), how], stdin=stdin, stdout=stdout, stderr=2)
    os.close(stdin)
    os.close(stdout)
    return process, trio.lowlevel.FdStream(ours), trio.lowlevel.FdStream(output)


async def lines_of(stream: trio.lowlevel.FdStream, count: int) -> list[bytes]:
    text = b""
    while text.count(b"\n") < count:
        text += await stream.receive_some()
    return text.splitlines()


async def check(path: Path, tasks: dict[str, str]) -> None:
    """Each record says what became of its task."""
    async with SQLiteTaskStore(path) as store:
        once, again = await record_in(store, tasks["once"]), await record_in(store, tasks["again"])
    assert once.phase is TaskPhase.ENDED
    assert once.outcome is not None
    assert b"the server was shut down while the task was running" in once.outcome.json
    assert (again.phase, again.holder) == (TaskPhase.WORKING, None)


@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
async def test_stdio_server_stores_task_outcomes_on_end_of_input_or_sigterm(tmp_path: Path, how: str) -> None:
    process, writing, reading = started(tmp_path / "tasks.db", "stdio")
    async with writing, reading:
        for name in ("once", "again"):
            params = {"name": name, "arguments": {"seconds": 600}, "_meta": META}
            request = {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": params}
            await writing.send_all(json.dumps(request).encode() + b"\n")
        answers: list[dict[str, Any]] = [json.loads(line) for line in await lines_of(reading, 2)]
        if how == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            await writing.aclose()
        assert await process.ended() == 0
    await check(tmp_path / "tasks.db", {each["id"]: each["result"]["taskId"] for each in answers})


async def test_http_server_stores_task_outcomes_on_sigterm(tmp_path: Path) -> None:
    process, writing, reading = started(tmp_path / "tasks.db", "http")
    async with writing, reading:
        (port,) = await lines_of(reading, 1)
        async with open_http(f"http://127.0.0.1:{int(port)}/mcp", era="modern") as client:
            tasks = {name: await Caller(client).start(name, seconds=600) for name in ("once", "again")}
        process.send_signal(signal.SIGTERM)
        assert await process.ended() == 0
    await check(tmp_path / "tasks.db", tasks)
