"""Worker processes of ``trio-mcp run``, which share listening sockets: `Supervisor` starts and replaces workers, and
`WorkerLink` is a worker's end of the connection between the two.

The supervisor holds the sockets open all the time, so a worker may end, and another start, without a refused
connection. The supervisor loads nothing of the author's. A worker reports that its server listens, and ends when the
supervisor is gone.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from ..classes import define, frozen
from ..concurrency.nurseries import open_service_nursery
from .printable import say
from .statuses import ENDED_WELL

_VARIABLE: Final = "TRIO_MCP_WORKER"
_SECRET_BYTES: Final = 32
_LONGEST_NAME: Final = 1000
_LAST_REQUESTS: Final = 0.5
"""Seconds in which a worker that accepts nothing more takes requests over its open connections."""
_PAUSE: Final = 1.0
"""Seconds until a failed worker is started again: the next one may fail at once, too, and so on for ever."""


@frozen
class WorkerLink:
    """A worker's end of the connection to its supervisor."""

    listeners: tuple[socket.socket, ...]
    """The listening sockets, shared with the other workers."""
    secret: bytes
    """A secret that all workers share."""
    _life: socket.socket

    @staticmethod
    def from_environment() -> WorkerLink | None:
        """Return the link of this process; `None` where it is no worker. Children of the process get none."""
        text = os.environ.pop(_VARIABLE, None)
        if text is None:
            return None
        given = json.loads(text)
        listeners = tuple(socket.socket(fileno=number) for number in given["listeners"])
        life = socket.socket(fileno=given["life"])
        for each in (*listeners, life):
            each.set_inheritable(False)
        return WorkerLink(listeners, life.recv(_SECRET_BYTES, socket.MSG_WAITALL), life)

    def tell_ready(self, name: str) -> None:
        """Tell the supervisor that the server ``name`` listens. Synchronous: few bytes, once."""
        self._life.sendall(name.encode("utf-8", "replace")[:_LONGEST_NAME] + b"\n")

    async def obey(self, listeners: Sequence[WorkerListener]) -> None:
        """Wait until this worker is replaced, or the supervisor is gone, and have the process end as by SIGTERM then. A
        worker that is replaced accepts nothing more, and answers those who have connected before for a while."""
        await trio.lowlevel.wait_readable(self._life)
        if self._life.recv(1):
            for listener in listeners:
                listener.stop()
            await trio.sleep(_LAST_REQUESTS)
        os.kill(os.getpid(), signal.SIGTERM)


class WorkerListener(trio.abc.Listener[trio.SocketStream]):
    """A listener on a socket that other processes share, which can stop to accept."""

    def __init__(self, shared: socket.socket) -> None:
        self.transport_listener = trio.SocketListener(trio.socket.from_stdlib_socket(shared))
        """The listener that accepts, under the name that `trio.SSLListener` has for it."""
        self._scope = trio.CancelScope()
        """The scope of the present `accept`."""
        self._is_stopped = False

    async def accept(self) -> trio.SocketStream:
        """Accept a connection: see `trio.abc.Listener.accept`. After `stop`, wait for ever."""
        if not self._is_stopped:
            with trio.CancelScope() as self._scope:
                return await self.transport_listener.accept()
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        """Close this process's end of the socket."""
        await self.transport_listener.aclose()

    def stop(self) -> None:
        """Accept nothing more: other workers do."""
        self._is_stopped = True
        self._scope.cancel(reason="another worker accepts now")


@define(eq=False)
class _Worker:
    process: trio.Process
    life: trio.SocketStream
    predecessor: int | None
    """Id of the process before, whose place the worker takes."""
    name: str = ""
    listens: trio.Event = attrs.Factory(trio.Event)
    """Set when the worker listens, or has ended before."""
    is_replaced: bool = False

    def end(self) -> None:
        """Ask the process to end: it stops accepting, drains, and exits."""
        if self.process.returncode is None:
            self.process.terminate()

    async def retire(self) -> None:
        """Ask the process to leave new connections to others, and to end soon."""
        with suppress(trio.BrokenResourceError):
            await self.life.send_all(b"r")


class Supervisor:
    """Keeps ``count`` workers running, of this very command line, which accept connections from ``listeners``.

    A worker that dies is replaced, alone. SIGHUP replaces all, one after another, each old one when its successor
    listens; each item of ``changes`` does the same. SIGTERM and SIGINT are handed on. ``on_ready`` is called once, with
    the name of the server.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        count: int,
        on_ready: Callable[[str], None],
        changes: AsyncIterator[object] | None = None,
    ) -> None:
        self._listeners = listeners
        self._count = count
        self._on_ready: Callable[[str], None] | None = on_ready
        self._changes = changes
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._workers: dict[_Worker, None] = {}
        self._status = ENDED_WELL
        self._is_ending = False
        self._swapping = trio.Lock()

    async def run(self) -> int:
        """Run until a signal has ended all workers, or the first ones could not start. Return the exit status."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with open_service_nursery("the workers have ended") as services:
                services.start_soon(self._obey, signals)
                if self._changes is not None:
                    services.start_soon(self._follow, self._changes)
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    first = await self._start()
                    await first.listens.wait()
                    for _ in range(1, self._count if first.name else 0):  # a file that raises says so once
                        await self._start()
        return self._status

    async def _obey(self, signals: AsyncIterator[int]) -> None:
        async with trio.open_nursery() as nursery:
            async for number in signals:
                if number == signal.SIGHUP:
                    nursery.start_soon(self._replace_all)
                else:
                    self._end()

    async def _follow(self, changes: AsyncIterator[object]) -> None:
        async for _ in changes:
            say("files have changed: starting the server anew")
            await self._replace_all()

    def _end(self) -> None:
        self._is_ending = True
        for worker in self._workers:
            worker.end()

    async def _start(self, predecessor: int | None = None) -> _Worker:
        """Start a worker, which is watched from then on."""
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = [each.fileno() for each in self._listeners]
            given = json.dumps({"listeners": numbers, "life": theirs.fileno()})
            ours.sendall(self._secret)
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "trio_mcp.cli", *sys.argv[1:]],
                stdin=subprocess.DEVNULL,
                pass_fds=[*numbers, theirs.fileno()],
                env={**os.environ, _VARIABLE: given},
                process_group=0,  # Ctrl-C is for the supervisor, which hands it on
            )
        worker = _Worker(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)), predecessor)
        self._workers[worker] = None
        self._nursery.start_soon(self._watch, worker)
        if self._is_ending:  # since the process was asked for
            worker.end()
        return worker

    async def _watch(self, worker: _Worker) -> None:
        """Wait for the end of ``worker``, and start another one unless it was to end."""
        try:
            async with open_service_nursery("the worker has ended") as services:
                services.start_soon(self._hear, worker)
                status = await worker.process.wait()
        finally:
            worker.process.kill()
            worker.listens.set()
            del self._workers[worker]
            await worker.life.aclose()
        if self._is_ending or worker.is_replaced:
            return
        if self._on_ready is not None:  # no worker has ever listened, and none will
            self._status = max(status, 1)
            self._end()
            return
        say(f"worker {worker.process.pid} has ended with status {status}; another one is started")
        await trio.sleep(_PAUSE)
        if not self._is_ending:
            await self._start(worker.process.pid)

    async def _hear(self, worker: _Worker) -> None:
        told = bytearray()
        with suppress(trio.BrokenResourceError):  # it has died before it read what it was given
            async for data in worker.life:
                told += data
                if told.endswith(b"\n") and not worker.listens.is_set():
                    self._listening(worker, told.decode().strip())

    def _listening(self, worker: _Worker, name: str) -> None:
        """Take note that ``worker`` listens, with the server ``name``."""
        worker.name = name
        worker.listens.set()
        if worker.predecessor is not None:
            say(f"worker {worker.process.pid} serves in the place of {worker.predecessor}")
        if self._on_ready is not None:
            self._on_ready(name)
            self._on_ready = None

    async def _replace_all(self) -> None:
        async with self._swapping:
            for old in list(self._workers):
                if self._is_ending or old not in self._workers:
                    continue
                new = await self._start(old.process.pid)
                new.is_replaced = True  # where it fails, the old one stays, and no other is needed
                await new.listens.wait()
                if not new.name:
                    say("the new version did not start; the old one goes on")
                    return
                new.is_replaced, old.is_replaced = False, True
                await old.retire()


async def supervise(
    listeners: Sequence[socket.socket],
    count: int,
    announce: Callable[[str], None],
    watched: str | None,
) -> int:
    """Run a `Supervisor`; with ``watched``, a folder, changes of Python files in the folder replace the workers.
    ``listeners`` are closed at the end."""
    changes: AsyncIterator[object] | None = None
    if watched is not None:
        from watchfiles import PythonFilter, awatch

        changes = awatch(watched, watch_filter=PythonFilter())
    try:
        return await Supervisor(listeners, count, announce, changes).run()
    finally:
        for each in listeners:
            each.close()
