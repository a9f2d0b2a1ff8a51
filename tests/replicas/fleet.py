"""Fleet: several ``trio-mcp run`` of one server behind nginx or HAProxy, with a Redis that they share, and a second one
that nobody kills, in which the tools write down what they have done. All end by their process ids."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import attrs
import pytest
import trio
from tests.cli.commands import TRIO_MCP, forked
from tests.fleet.redis_server import RedisServer
from tests.forked import Forked
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.reverse_proxies.proxies import Proxy, until_listening

from trio_mcp import Client, open_http

__all__ = ["APP", "LEASE", "SESSION_LEASE", "Fleet", "Replica", "call_pid", "fleet", "needs", "serving", "until"]

APP: Final = Path(__file__).with_name("app.py")
LEASE: Final = 2.0
"""Seconds of silence after which the tasks of a replica are taken over: those of the app."""
SESSION_LEASE: Final = 5.0
"""Seconds of silence after which a replica counts as dead."""


async def until(holds: Callable[[], object]) -> None:
    """Wait until something is so of which no event tells: a file, a process, a list elsewhere."""
    with trio.fail_after(PATIENCE):
        while not holds():  # noqa: ASYNC110 - see above
            await trio.sleep(0.02)


def needs(proxy: Proxy) -> Proxy:
    """Return ``proxy``; skip the test where it is not installed."""
    if not proxy.is_installed:
        pytest.skip(f"{proxy.name} is not installed")
    return proxy


@attrs.define(eq=False)
class Replica:
    """One process of the server, which has one port in all its lives."""

    port: int
    shared: str
    log: Path
    program: Sequence[str]
    """The file of the server, and its arguments behind ``--``."""
    _process: Forked | None = None

    @property
    def process(self) -> Forked:
        assert self._process is not None, "it runs"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def start(self) -> None:
        """Start the process, and wait until it listens."""
        options = ["--http", str(self.port), "--trusted-proxy", "127.0.0.1"]
        options += ["--health", "--shared", self.shared]
        file, *arguments = self.program
        errors = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDWR)
        self._process = forked([*TRIO_MCP, "run", file, *options, "--", *arguments], null, null, errors)
        with trio.fail_after(PATIENCE):
            await until_listening(self.port, self._process)

    def kill(self) -> None:
        """Kill the process, if it runs; a frozen one, too."""
        if self._process is not None:
            self._process.kill()

    def freeze(self) -> None:
        """Stop the process, until `go_on`."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def replace(self) -> None:
        """End the process in good order, and start another one in its place."""
        self.process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            status = await self.process.ended()
        assert status == 0, self.log.read_text()[-3000:]
        await self.start()


@attrs.frozen(eq=False)
class Fleet:
    """Replicas behind a balancer."""

    replicas: list[Replica]
    port: int
    """The port of the balancer."""
    journal: RedisServer
    """The Redis that nobody kills."""

    @property
    def pids(self) -> set[int]:
        """The processes that serve now."""
        return {replica.pid for replica in self.replicas}

    def client(self, era: Literal["modern", "legacy"] = "modern", *, call_timeout: float = PATIENCE, **options: object):
        """Open a client, which reaches any replica with any request."""
        url = f"http://127.0.0.1:{self.port}/mcp"
        return open_http(url, era=era, call_timeout=call_timeout, **options)  # pyright: ignore[reportArgumentType]

    def told(self, key: str) -> list[list[str]]:
        """What the tools have told under this key, in words."""
        return [line.decode().split() for line in self.journal.ask("LRANGE", key, 0, -1)]

    async def until_told(self, key: str) -> list[str]:
        """Wait until a tool has told something under this key; the words of the first line."""
        await until(lambda: self.told(key))
        return self.told(key)[0]


@asynccontextmanager
async def fleet(folder: Path, proxy: Proxy, shared: str | RedisServer, *, replicas: int = 4) -> AsyncGenerator[Fleet]:
    """Start replicas that share ``shared``, and ``proxy`` before them."""
    needs(proxy)
    storage = shared if isinstance(shared, str) else shared.url
    with RedisServer(folder) as journal:
        program = [str(APP), str(journal.port)]
        async with serving(folder, proxy, storage, program, replicas=replicas) as (made, port):
            yield Fleet(made, port, journal)


@asynccontextmanager
async def serving(
    folder: Path, proxy: Proxy, shared: str, program: Sequence[str], *, replicas: int = 4
) -> AsyncGenerator[tuple[list[Replica], int]]:
    """Start replicas of any server behind ``proxy``: the replicas, and the port of the proxy."""
    made = [Replica(free_port(), shared, folder / f"replica-{n}.log", program) for n in range(1, replicas + 1)]
    try:
        async with trio.open_nursery() as nursery:
            for replica in made:
                nursery.start_soon(replica.start)
        ports = [replica.port for replica in made]
        async with proxy.running(folder, ports[0], replicas=ports) as port:
            yield made, port
    finally:
        for replica in made:
            replica.kill()


async def call_pid(client: Client, seconds: float = 0.0) -> int:
    """Return the process that answers."""
    return int((await client.call_tool("pid", {"seconds": seconds})).text)
