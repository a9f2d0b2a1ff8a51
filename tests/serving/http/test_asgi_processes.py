"""http_app beside asyncio in processes that uvicorn starts: several workers, and a worker that it reloads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from tests.patience import PATIENCE
from tests.ports import free_port

from trio_mcp import MCPError, open_http

MODULE = """
import os
from fastapi import FastAPI
import trio
from trio_mcp import RequestContext, Server, http_app

server = Server("s")

@server.tool
async def version() -> str:
    return "VERSION"

@server.tool
async def wait(ctx: RequestContext) -> None:
    try:
        ctx.progress(1)
        await trio.sleep_forever()
    finally:
        with open("ended", "a") as file:
            file.write(f"{ctx.cancellation.cause.value}\\n")

mcp = http_app(server, allowed_origins=[], allowed_hosts=["127.0.0.1"])
app = FastAPI(lifespan=mcp.lifespan)
app.mount("/", mcp)
"""


@asynccontextmanager
async def uvicorn_in(folder: Path, *options: str) -> AsyncGenerator[str]:
    (folder / "module.py").write_text(MODULE)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "module:app", "--port", str(port), "--timeout-graceful-shutdown", "2"]
    process = await trio.lowlevel.open_process(
        [*command, *options], cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        with trio.fail_after(PATIENCE):
            while True:
                with suppress(OSError):
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                assert process.poll() is None
                await trio.sleep(0.01)
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()
        with trio.fail_after(PATIENCE):
            await process.wait()
            with pytest.raises(ProcessLookupError):
                while True:  # until nothing of its group is left
                    os.killpg(process.pid, 0)
                    await trio.sleep(0.01)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def test_uvicorn_worker_processes_serve_requests_and_cancel_the_requests_of_disconnected_clients(
    tmp_path: Path,
) -> None:
    async with uvicorn_in(tmp_path, "--workers", "2") as url, trio.open_nursery() as nursery:
        for _ in range(6):  # connections of their own, to any of the workers

            async def call_and_leave() -> None:
                async with open_http(url, http_proxy=None) as client:
                    with trio.CancelScope() as scope:
                        await client.call_tool("wait", on_progress=lambda _: scope.cancel(reason="enough"))
                    assert scope.cancelled_caught

            nursery.start_soon(call_and_leave)
    assert (tmp_path / "ended").read_text().splitlines() == ["disconnect"] * 6


async def test_uvicorn_reload_serves_the_changed_asgi_app(tmp_path: Path) -> None:
    async def version() -> str | None:
        with suppress(OSError, MCPError):  # the worker that ends may not answer any more
            async with open_http(url, http_proxy=None) as client:
                return (await client.call_tool("version")).text
        return None

    async with uvicorn_in(tmp_path, "--reload") as url:
        assert await version() == "VERSION"
        # Of another length: Python takes bytecode for current by the second and the size of its source.
        (tmp_path / "module.py").write_text(MODULE.replace("VERSION", "another one"))
        with trio.fail_after(PATIENCE):
            while await version() != "another one":  # noqa: ASYNC110, another process tells nothing
                await trio.sleep(0.05)
