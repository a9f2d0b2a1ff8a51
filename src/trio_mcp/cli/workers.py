"""The worker processes of ``trio-mcp run``, which share listening sockets. `open_worker` starts a worker, and
`WorkerLink` is the worker's connection to its supervisor.

A worker reports when its server listens, and ends when the supervisor has ended.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from errno import EAGAIN, EINVAL
from functools import partial
from typing import Final

import trio

from ..classes import define
from ..concurrency.contexts import asynccontextmanager
from ..diagnostics.log import log_in_thread
from ..runtime.limits import Limits
from .supervisor import START_ENDS_WITHIN, Supervisor, WorkerProcess

_VARIABLE: Final = "TRIO_MCP_WORKER"
_SECRET_BYTES: Final = 32
_LONGEST_NAME: Final = 1000
_LAST_REQUESTS: Final = 0.5
"""Seconds in which a worker that accepts no more connections still accepts requests over its open connections."""
_LIFESPAN: Final = 5.0
"""Seconds that the lifespan and the interpreter may take to end."""


def seconds_to_end(limits: Limits) -> float:
    """Return the number of seconds that a worker with these ``limits`` has to end before the supervisor kills it."""
    return _LAST_REQUESTS + limits.drain_delay + limits.drain_timeout + limits.shutdown_grace + _LIFESPAN


@define(eq=False)
class WorkerLink:
    """A worker's connection to its supervisor."""

    listeners: tuple[socket.socket, ...]
    """The listening sockets that all workers share."""
    secret: bytes
    """A secret that all workers of a supervisor share."""
    metrics: str | None
    """The path of the Unix socket over which the supervisor queries the metrics."""
    _life: socket.socket
    _ends_within: float = START_ENDS_WITHIN

    @staticmethod
    def from_environment() -> WorkerLink | None:
        """Return this process's connection to its supervisor; `None` if this process isn't a worker. Child processes
        don't inherit the connection."""
        text = os.environ.pop(_VARIABLE, None)
        if text is None:
            return None
        given = json.loads(text)
        listeners = tuple(socket.socket(fileno=number) for number in given["listeners"])
        life = socket.socket(fileno=given["life"])
        for each in (*listeners, life):
            each.set_inheritable(False)
        folder = given["metrics"]
        metrics = None if folder is None else os.path.join(folder, str(os.getpid()))
        link = WorkerLink(listeners, life.recv(_SECRET_BYTES, socket.MSG_WAITALL), metrics, life)
        threading.Thread(target=link._end_with_supervisor, name="trio-mcp supervisor", daemon=True).start()
        return link

    def _end_with_supervisor(self) -> None:
        """End this worker when its supervisor has ended.

        Runs in a thread, so that the port is released for the next supervisor even during an import or while a handler
        is busy.
        """
        poll = select.poll()
        poll.register(self._life, 0)  # the other end of the pipe closes when the supervisor ends: wait for that
        poll.poll()
        for each in self.listeners:
            with suppress(OSError):  # another worker has shut down the socket, or the system can't shut it down
                # Make all processes that share the socket stop listening, even suspended processes.
                each.shutdown(socket.SHUT_RDWR)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._ends_within)
        os.kill(os.getpid(), signal.SIGKILL)  # the process is busy, and hasn't ended after SIGTERM

    def report_listening(self, name: str, limits: Limits) -> None:
        """Report to the supervisor that this worker serves the server ``name`` and has started to listen. Synchronous,
        since it writes only a few bytes."""
        self._ends_within = seconds_to_end(limits)
        report = {"server": name[:_LONGEST_NAME], "ends_within": self._ends_within}
        with suppress(OSError):  # the supervisor has ended, so the watching thread ends this process
            self._life.sendall(json.dumps(report).encode() + b"\n")

    async def obey(self, listeners: Sequence[WorkerListener]) -> None:
        """Wait until the supervisor replaces this worker, then stop accepting connections. Give requests on open
        connections a little time, then end this process with SIGTERM."""
        await trio.lowlevel.wait_readable(self._life)
        for listener in listeners:
            listener.stop()
        with suppress(OSError):
            if self._life.recv(1):
                await trio.sleep(_LAST_REQUESTS)
                os.kill(os.getpid(), signal.SIGTERM)


class WorkerListener(trio.abc.Listener[trio.SocketStream]):
    """A listener on a socket that several worker processes share. It can stop accepting connections."""

    def __init__(self, shared: socket.socket) -> None:
        self.transport_listener = trio.SocketListener(trio.socket.from_stdlib_socket(shared))
        """The underlying listener, under the name that `trio.SSLListener` expects."""
        self._scope = trio.CancelScope()
        """The cancel scope of the current call of `accept`."""
        self._is_stopped = False

    async def accept(self) -> trio.SocketStream:
        """Accept and return a connection: see `trio.abc.Listener.accept`. After `stop` was called, wait until
        cancelled."""
        if not self._is_stopped:
            with trio.CancelScope() as self._scope:
                try:
                    return await self.transport_listener.accept()
                except OSError as error:
                    if error.errno != EINVAL:  # another worker has shut down the socket (EINVAL)
                        raise
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        """Close the listening socket in this process only."""
        await self.transport_listener.aclose()

    def stop(self) -> None:
        """Stop accepting connections in this process, since other workers accept them."""
        self._is_stopped = True
        self._scope.cancel(reason="another worker accepts now")


def _output(descriptor: int) -> int | None:
    """Return one of this process's standard streams for a worker. Returns the null device instead of a broken stream.

    Otherwise a file that prints while it is imported would fail.
    """
    poll = select.poll()
    poll.register(descriptor, 0)  # poll only for errors: a pipe without a reader, a closed terminal
    return subprocess.DEVNULL if poll.poll(0) else None


@asynccontextmanager
async def open_worker(
    listeners: Sequence[socket.socket], secret: bytes, metrics: str | None = None
) -> AsyncGenerator[WorkerProcess]:
    """Start a worker with the command line of this process, and yield its process. If the process still runs at the end
    of the block, it is killed.

    The worker serves its metrics on a socket in the folder ``metrics``. Raises `OSError` if the system can't start a
    process.
    """
    ours, theirs = socket.socketpair()
    async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as life:
        with theirs:
            numbers = [each.fileno() for each in listeners]
            given = json.dumps({"listeners": numbers, "life": theirs.fileno(), "metrics": metrics})
            ours.sendall(secret)
            try:
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-m", "trio_mcp.cli", *sys.argv[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=_output(1),
                    stderr=_output(2),
                    pass_fds=[*numbers, theirs.fileno()],
                    env={**os.environ, _VARIABLE: given},
                    # Start a new process group, so that only the supervisor gets Ctrl-C. The supervisor forwards it.
                    process_group=0,
                )
            except RuntimeError as error:  # the system has no thread left to start the process
                raise OSError(EAGAIN, str(error)) from error
        try:
            yield WorkerProcess(process, life)
        finally:
            process.kill()


async def supervise(
    listeners: Sequence[socket.socket],
    count: int,
    announce: Callable[[str], None],
    watched: str | None,
    metrics: tuple[str, int] | None = None,
) -> int:
    """Run a `Supervisor` until all workers have ended, and return the exit status.

    Changed Python files in the folder ``watched`` cause a reload. ``metrics`` is the host and port of the metrics page
    of all workers. ``listeners`` are closed at the end. Raises `CommandError` if metrics can't be served.
    """
    changes: AsyncIterator[object] | None = None
    if watched is not None:
        from watchfiles import PythonFilter, awatch

        changes = awatch(watched, watch_filter=PythonFilter())
    page: AbstractAsyncContextManager[str | None] = nullcontext()
    if metrics is not None:
        from .metrics import page_of_workers  # needs an extra

        page = page_of_workers(*metrics)
    secret = secrets.token_bytes(_SECRET_BYTES)
    try:
        # Log in a thread, because standard error may have no reader.
        async with log_in_thread(), page as folder:
            return await Supervisor(partial(open_worker, listeners, secret, folder), count, announce, changes).run()
    finally:
        for each in listeners:
            with suppress(OSError):  # some systems can shut down only connections, not listening sockets
                # Shut down the socket, because a worker's child processes may still have it open.
                each.shutdown(socket.SHUT_RDWR)
            each.close()
