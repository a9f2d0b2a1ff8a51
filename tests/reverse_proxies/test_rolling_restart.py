"""Two processes behind nginx and HAProxy, configured as in docs/deployment, are replaced without a failed call."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from tests.cli.commands import Running, running, written
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.reverse_proxies.proxies import HAPROXY, NGINX, Proxy

from trio_mcp import open_http

SERVER = """
    import os
    import trio
    from trio_mcp import Limits, Server

    delay = float(os.environ["DELAY"])
    server = Server("rolling", limits=Limits(drain_delay=delay, drain_timeout=5))

    @server.tool
    async def pid(seconds: float) -> int:
        await trio.sleep(seconds)
        return os.getpid()
"""


@asynccontextmanager
async def serving(file: str, port: int) -> AsyncIterator[Running]:
    options = [
        "--http",
        str(port),
        "--allowed-host",
        "127.0.0.1",
        "--allowed-origin",
        "none",
        "--stateless",
        "--health",
    ]
    async with running("run", file, *options) as process:
        await process.line(r"(serving 'rolling')")
        yield process


async def replace(old: Running) -> None:
    old.process.send_signal(signal.SIGTERM)
    with trio.fail_after(PATIENCE):
        assert await old.process.ended() == 0


@pytest.mark.parametrize(
    ("proxy", "delay"),
    [(NGINX, "0"), (NGINX, "2"), (HAPROXY, "2")],
    ids=["nginx without a delay", "nginx", "haproxy"],
)
async def test_rolling_restart_of_two_processes_behind_a_reverse_proxy_fails_no_call(
    proxy: Proxy, delay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not proxy.is_installed:
        pytest.skip(f"{proxy.name} is not installed")
    monkeypatch.setenv("DELAY", delay)
    file = written(tmp_path / "server.py", SERVER)
    first, second = free_port(), free_port()
    pids: set[str] = set()
    calls = 0
    async with (
        serving(file, first) as one,
        serving(file, second) as two,
        proxy.running(tmp_path, first, replicas=[first, second]) as port,
    ):

        async def call_on(seconds: float) -> None:
            nonlocal calls
            while True:
                async with open_http(f"http://127.0.0.1:{port}/mcp", era="modern") as client:
                    for _ in range(5):
                        pids.add((await client.call_tool("pid", {"seconds": seconds})).text)
                        calls += 1

        async with trio.open_nursery() as nursery:
            for seconds in (0, 0, 0.05, 0.3):
                nursery.start_soon(call_on, seconds)
            while len(pids) < 2:  # a call comes back in between
                await trio.lowlevel.checkpoint()
            await replace(one)
            async with serving(file, first):
                while len(pids) < 3:  # a call comes back in between
                    await trio.lowlevel.checkpoint()
                await replace(two)
                async with serving(file, second):
                    while len(pids) < 4:  # a call comes back in between
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel(reason="no call has failed")
    assert calls > 50
