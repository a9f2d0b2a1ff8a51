"""The examples of servers and hosts in programs that run asyncio: who leaves a call stops its handler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.serving.http.raw import Connection, modern

FOLDER = Path(__file__).parent.parent / "examples" / "on_asyncio"
PROGRAMS = sorted(FOLDER.glob("[a-z]*.py"))

KERNEL = """
import ast, asyncio, builtins, inspect, re, sys
async def kernel(text):
    names = {"__name__": "__main__"}
    cells = re.split(r"^# %%", text, flags=re.MULTILINE)[1:]
    for number, cell in enumerate(cells):
        if number == len(cells) - 1:  # the user comes back
            await asyncio.to_thread(sys.stdin.readline)
        code = compile("#" + cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if inspect.iscoroutine(running := eval(code, names)):
            await running
asyncio.run(kernel(open(sys.argv[1]).read()))
"""
"""The cells of a notebook, in an event loop that runs already, as in IPython's kernel."""


@asynccontextmanager
async def started(*words: str, **environment: str) -> AsyncGenerator[trio.Process]:
    process = await trio.lowlevel.open_process(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        with trio.fail_after(PATIENCE):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                await pipe.aclose()


async def connected(port: int) -> Connection:
    while True:
        with suppress(OSError):
            return Connection(await trio.open_tcp_stream("127.0.0.1", port))
        await trio.sleep(0.01)


async def text_until(process: trio.Process, words: bytes) -> bytes:
    text = b""
    assert process.stdout is not None
    while words not in text:
        more = await process.stdout.receive_some()
        assert more, text
        text += more
    return text


@pytest.mark.parametrize("program", ["fastapi_app.py", "starlette_app.py", "notebook.py"])
async def test_browser_that_disconnects_from_an_asyncio_app_cancels_the_handler_in_the_server_process(
    program: str,
) -> None:
    port = free_port()
    is_notebook = program == "notebook.py"
    words = ["-c", KERNEL, str(FOLDER / program)] if is_notebook else [str(FOLDER / program), str(port)]
    async with started(*words, PORT=str(port)) as process:
        if is_notebook:
            await text_until(process, b"rows: [1, 2, 3]")
        browser = await connected(port)
        headers, body = modern("tools/call", {"name": "report", "arguments": {}, "_meta": {"progressToken": 1}})
        await browser.send("POST", {**headers}, body)
        assert (await browser.head()).headers["content-type"] == "text/event-stream"
        assert (await browser.event()).data["method"] == "notifications/progress"
        await browser.aclose()
        await text_until(process, b"stopped: disconnect")
        if is_notebook:
            assert process.stdin is not None
            await process.stdin.send_all(b"\n")
        else:
            process.terminate()
        await process.wait()


async def test_cancelled_asyncio_task_cancels_the_handler_in_the_server_process() -> None:
    async with started(str(FOLDER / "host.py")) as process:
        text = await text_until(process, b"the call was cancelled")
        if b"stopped: peer" not in text:
            await text_until(process, b"stopped: peer")
        assert await process.wait() == 0


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_asyncio_example_has_at_most_60_lines(program: Path) -> None:
    assert len(program.read_text().splitlines()) <= 60
