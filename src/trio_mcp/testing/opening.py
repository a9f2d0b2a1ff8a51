"""Openers of scripted peers: in memory, and over the standard input and output of processes."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import Unpack

import trio

from ..client.client import Client
from ..client.opening import open_client
from ..client.options import ClientOptions
from ..concurrency.contexts import asynccontextmanager, contextmanager
from ..concurrency.misuse import entered
from ..concurrency.nurseries import open_service_nursery
from ..connecting.memory import open_server
from ..connecting.stdio import Command, open_process
from ..protocol.fields import JSONObject
from ..protocol.revisions import LATEST_MODERN
from ..runtime.limits import DEFAULT_LIMITS
from ..server.served import Servable
from ..transports.memory import memory_channel_pair
from ..transports.process import TextSink
from ..transports.stdio import own_stdio
from .scripted_client import ScriptedClient
from .scripted_server import ScriptedServer

Script = Callable[[ScriptedServer], Awaitable[None]]


@entered("client")
@asynccontextmanager
async def open_scripted_client(
    server: Servable,
    revision: str | None = LATEST_MODERN.name,
    capabilities: JSONObject | None = None,
    *,
    stateless: bool = False,
    patience: float = 10.0,
) -> AsyncGenerator[ScriptedClient]:
    """Run ``server`` in this process, and be its client, message by message.

    ``revision`` and ``capabilities``: see `ScriptedClient.open`; with ``revision=None`` the script opens the
    connection. The end of the block closes the connection and cancels its remaining requests.
    """
    ours, theirs = memory_channel_pair()
    async with open_server(server, theirs, stateless=stateless):
        client = ScriptedClient(ours, patience=patience)
        try:
            if revision is not None:
                await client.open(revision, capabilities)
            yield client
        finally:
            await client.aclose()


@entered("client")
@asynccontextmanager
async def open_scripted_process(
    command: Sequence[str | os.PathLike[str]],
    revision: str | None = LATEST_MODERN.name,
    capabilities: JSONObject | None = None,
    *,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    stderr: TextSink | None = None,
    close_grace: float = 2.0,
    patience: float = 10.0,
) -> AsyncGenerator[ScriptedClient]:
    """Start a server of any make with ``command``, and be its client over stdio, as `open_scripted_client`.

    The process is started and ended as by `trio_mcp.open_stdio`. Not for a virtual clock, which would not wait for
    another process.
    """
    child = Command(command, env=env or {}, inherit_env=inherit_env, cwd=cwd, stderr=stderr, close_grace=close_grace)
    async with open_process(child) as channel:
        client = ScriptedClient(channel, patience=patience)
        if revision is not None:
            await client.open(revision, capabilities)
        yield client


@entered("client")
@asynccontextmanager
async def open_scripted_server(
    script: Script, *, patience: float = 10.0, **options: Unpack[ClientOptions]
) -> AsyncGenerator[Client]:
    """Open a client whose server does what ``script`` says, beside the block. ``options`` are those of
    `trio_mcp.open_stdio`.

    If the script fails, the block is cancelled and raises the script's exception, unchanged. After the block the client
    is closed, which the script sees as the end of the connection; a script that still runs then has ``patience``
    seconds. Messages after the end of the script are read and not answered.
    """
    ours, theirs = memory_channel_pair()
    play = _Play(script, ScriptedServer(theirs, patience=patience))
    try:
        with play.beside:
            async with open_service_nursery("the block was left") as nursery:
                nursery.start_soon(play.run)
                async with open_client(ours, **options) as client:
                    with play.watching():
                        yield client
                await play.over(patience)
    except Exception as error:
        if play.failure is None:
            raise
        raise play.failure from error
    if play.failure is not None:
        raise play.failure


class _Play:
    """A script that runs beside the caller's block. The first failure, of script or block, is raised."""

    def __init__(self, script: Script, server: ScriptedServer) -> None:
        self._script = script
        self._server = server
        self._block_failed = False
        self._ended = trio.Event()
        self.beside = trio.CancelScope()
        self.failure: Exception | None = None
        """The script's exception, unless the block had failed before."""

    async def run(self) -> None:
        try:
            await self._script(self._server)
        except Exception as error:
            if not self._block_failed:
                self.failure = error
                self.beside.cancel(reason="the script of the server failed")
        else:
            await self._server.read_to_end()
        self._ended.set()

    @contextmanager
    def watching(self) -> Generator[None]:
        try:
            yield
        except Exception:
            self._block_failed = True
            raise

    async def over(self, patience: float) -> None:
        with trio.move_on_after(patience):
            await self._ended.wait()
        if not self._ended.is_set():
            raise trio.TooSlowError(f"the script went on for {patience:g} seconds after the client was closed")


async def serve_scripted_stdio(script: Script, *, patience: float = 10.0) -> None:
    """Be a server on this process's standard input and output that follows ``script``, to test a host that starts its
    servers itself. After the script the input is read to the end. Raises the exceptions of the script."""
    with own_stdio(DEFAULT_LIMITS.max_message_bytes) as channel:
        server = ScriptedServer(channel, patience=patience)
        await script(server)
        await server.read_to_end()
