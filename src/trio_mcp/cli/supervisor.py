"""Supervisor: starts the worker processes of ``trio-mcp run``, restarts them when they end, and replaces all of them on
a reload.

There are as many slots as workers. Each slot has at most one current worker, and at most one starting worker that will
replace it. A replaced worker belongs to no slot, and has its own time limit to end. A reload only increases the wanted
generation; the slots follow one after another.

The supervisor doesn't import the author's code. It survives failing workers and failing prints.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Final

import attrs
import trio

from ..classes import define, frozen
from ..concurrency.nurseries import open_service_nursery
from ..diagnostics.log import writer
from . import ENDED_WELL
from .printable import say

START_ENDS_WITHIN: Final = 5.0
"""Seconds that a worker may take to end if it isn't listening yet."""
_HURRY: Final = 2.0
"""Seconds that all workers may take to end after a second signal. Each worker then ends within one second."""
_KILLED: Final = 5.0
"""Seconds to wait for the end of a killed process. The operating system may not be able to end a process that waits for
a disk."""
_SLOW_START: Final = 30.0
"""If a worker isn't listening after this number of seconds, the supervisor reports the worker as slow."""
_HEALTHY: Final = 60.0
"""If a worker dies after it has served for this number of seconds, it is replaced at once. Otherwise its replacement
starts after a pause."""
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
"""Seconds until a worker that ended early is restarted. The pause doubles after each early end."""

_LONGEST_REPORT: Final = 10_000
"""Maximum number of bytes of a worker's report. There is a limit because a worker runs the author's code."""


@frozen
class ReadyReport:
    """A worker's message to the supervisor that it has started to listen."""

    server: str
    """The name of the server that the worker runs."""
    ends_within: float
    """Seconds that the worker may take to end after SIGTERM, or after `WorkerProcess.retire`."""


class WorkerProcess:
    """A worker's process, and the supervisor's end of the socket to it.

    Only `ended` and `listening` wait. If the process has ended, all methods do nothing and don't raise.
    """

    def __init__(self, process: trio.Process, life: trio.SocketStream) -> None:
        self.pid = process.pid
        self._process = process
        self._life = life

    async def ended(self) -> int:
        """Wait until the worker's process has ended, and return its exit status."""
        return await self._process.wait()

    async def listening(self) -> ReadyReport | None:
        """Wait until the worker has started to listen, and return its report. Returns `None` if no report will arrive
        any more."""
        text = b""
        try:
            while not text.endswith(b"\n"):
                data = await self._life.receive_some()
                text += data
                if not data or len(text) > _LONGEST_REPORT:
                    return None
            report = json.loads(text)
            return ReadyReport(str(report["server"]), float(report["ends_within"]))
        except (trio.BrokenResourceError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def retire(self) -> None:
        """Make the worker stop accepting connections. The worker ends later, when its open connections have had some
        time to finish."""
        try:
            os.write(self._life.socket.fileno(), b"r")
        except OSError:  # the process has ended, or has closed this descriptor
            self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        """Send the signal ``number`` to the worker's process."""
        if self._process.returncode is None:
            with suppress(OSError):  # the process has ended, or has changed its user
                self._process.send_signal(number)


@define(eq=False)
class _Worker:
    """The supervisor's record of one worker, from the decision to start it until its process has ended."""

    generation: int
    process: WorkerProcess | None = None
    """The process of the worker, or `None` until it exists."""
    life: trio.CancelScope = attrs.Factory(trio.CancelScope)
    """The cancel scope of the process. The process is killed at the scope's deadline."""
    ends_within: float = START_ENDS_WITHIN
    listens_since: float | None = None
    is_stopping: bool = False

    def retire(self) -> None:
        """Make the worker stop accepting connections. The worker ends later, when its open connections have had some
        time to finish."""
        if not self.is_stopping and self.process is not None:
            self.process.retire()
        self._stop_within(self.ends_within)

    def stop(self, *, hurry: bool = False) -> None:
        """Make the worker stop accepting connections, finish open requests, and exit. If ``hurry`` is true, the worker
        exits almost at once."""
        if self.process is not None:
            self.process.send(signal.SIGTERM)
        self._stop_within(_HURRY if hurry else self.ends_within)

    def _stop_within(self, seconds: float) -> None:
        self.is_stopping = True
        self.life.deadline = min(self.life.deadline, trio.current_time() + seconds)


@define(eq=False)
class _Slot:
    current: _Worker | None = None
    """The worker of this slot that listens, or `None` if it has ended."""
    starting: _Worker | None = None
    """The worker that is starting for this slot. It becomes the slot's current worker when it listens."""
    last: int | None = None
    """Process id of the current worker or, if there is none, of the previous one."""
    failures: int = 0
    """Number of consecutive workers of this slot that ended early."""
    not_before: float = -math.inf
    """Time of the next start of a worker, while the slot has no worker."""


class Supervisor:
    """Keeps ``count`` worker processes running. ``open_process`` is a context manager that starts a worker's process,
    and kills it at the end of the block.

    If a worker dies, only that worker is replaced. SIGHUP, and each item of ``changes``, replaces all workers one after
    another. Each old worker ends when its replacement listens. The last reload wins: a replacement that doesn't listen
    yet is ended. SIGTERM and SIGINT are passed on to the workers, and so is a SIGHUP sent because the terminal closed.
    ``on_ready`` is called once, with the server's name. ``report`` gets messages for the user. Neither may block.
    """

    def __init__(
        self,
        open_process: Callable[[], AbstractAsyncContextManager[WorkerProcess, bool | None]],
        count: int,
        on_ready: Callable[[str], None],
        changes: AsyncIterator[object] | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._open_process = open_process
        self._slots = [_Slot() for _ in range(count)]
        self._on_ready = on_ready
        self._changes = changes
        self._report = report or report_in_a_thread
        self._workers: dict[_Worker, None] = {}
        """All workers, including those that are being replaced."""
        self._generation = 0
        """The wanted generation of workers, which is the number of requested reloads."""
        self._failed: int | None = None
        """The last generation whose worker failed to start. In this case the workers of the earlier generation keep
        running."""
        self._has_served = False
        """Whether any worker has listened so far."""
        self._status = ENDED_WELL
        self._is_ending = False
        self._changed = trio.Event()

    async def run(self) -> int:
        """Start and supervise the workers. Returns the exit status when a signal has ended all workers, or when the
        first worker couldn't start."""
        had_terminal = _has_terminal()
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with open_service_nursery("the workers have ended") as services:
                services.start_soon(self._handle_signals, signals, had_terminal)
                if self._changes is not None:
                    services.start_soon(self._follow, self._changes)
                async with trio.open_nursery() as self._nursery:
                    while not self._is_ending:
                        self._changed = trio.Event()
                        with trio.CancelScope(deadline=self._start_due_workers()):
                            await self._changed.wait()
        return self._status

    def reload(self) -> None:
        """Replace all workers with new ones, one after another. Synchronous: `run` replaces them in the background."""
        self._generation += 1
        for slot in self._slots:
            slot.failures, slot.not_before = 0, -math.inf
        self._changed.set()

    def stop(self) -> None:
        """End all workers, so that `run` returns. If this method is called a second time, the workers are killed after
        a short time."""
        hurry, self._is_ending = self._is_ending, True
        for worker in self._workers:
            worker.stop(hurry=hurry)
        self._changed.set()

    async def _handle_signals(self, signals: AsyncIterator[int], had_terminal: bool) -> None:
        async for number in signals:
            if number == signal.SIGHUP and not (had_terminal and not _has_terminal()):
                self.reload()
            else:
                self.stop()

    async def _follow(self, changes: AsyncIterator[object]) -> None:
        try:
            async for _ in changes:
                self._report("files have changed: restarting the server")
                self.reload()
        except Exception as error:  # watchfiles has failed, or too many folders are watched
            self._report(f"files cannot be watched any more, so --reload has stopped working: {error!r}")

    def _start_due_workers(self) -> float:
        """Start the workers whose start time has come. Returns the time at which the next worker must be started."""
        now = trio.current_time()
        # Start a single worker until one has listened, so that a failing file prints only one traceback.
        slots = self._slots if self._has_served else self._slots[:1]
        for slot in slots:
            if slot.starting is not None and slot.starting.generation != self._generation:
                slot.starting.stop()
                slot.starting = None
            if slot.current is None and slot.starting is None and slot.not_before <= now:
                self._start(slot)
        # Replace workers one after another: if the new version fails, it has replaced at most one worker.
        if self._failed != self._generation and all(slot.current and not slot.starting for slot in slots):
            for slot in slots:
                if slot.current is not None and slot.current.generation != self._generation:
                    self._start(slot)
                    break
        return min((slot.not_before for slot in slots if not slot.current and not slot.starting), default=math.inf)

    def _start(self, slot: _Slot) -> None:
        slot.starting = worker = _Worker(self._generation)
        self._workers[worker] = None
        self._nursery.start_soon(self._run, slot, worker)

    async def _run(self, slot: _Slot, worker: _Worker) -> None:
        """Start the process of ``worker``, and wait until it has ended."""
        status = 1
        try:
            async with self._open_process() as process:
                worker.process = process
                if worker.is_stopping:  # `stop` was called while the process was starting
                    worker.stop()
                with worker.life:
                    async with open_service_nursery("the worker has ended") as services:
                        services.start_soon(self._wait_for_report, slot, worker, process)
                        status = await process.ended()
                if worker.life.cancelled_caught:
                    self._report(f"worker {process.pid} did not end in time and was killed")
                    process.send(signal.SIGKILL)
                    with trio.move_on_after(_KILLED):
                        status = await process.ended()
        except OSError as error:
            self._report(f"a worker could not be started: {error}")
        finally:
            del self._workers[worker]
        self._ended(slot, worker, status)
        self._changed.set()

    async def _wait_for_report(self, slot: _Slot, worker: _Worker, process: WorkerProcess) -> None:
        """Wait until ``worker`` has started to listen. Then let it replace the previous worker of ``slot``, which is
        one of the ``count`` places for workers."""
        report = None
        with trio.move_on_after(_SLOW_START) as patience:
            report = await process.listening()
        if patience.cancelled_caught:
            self._report(f"worker {process.pid} does not listen after {_SLOW_START:g} s; still waiting")
            report = await process.listening()
        if report is None:  # the worker is ending, or can't send a report
            worker.stop()
        elif slot.starting is worker and not self._is_ending:
            self._listening(slot, worker, process, report)
            self._changed.set()

    def _listening(self, slot: _Slot, worker: _Worker, process: WorkerProcess, report: ReadyReport) -> None:
        worker.ends_within = report.ends_within
        worker.listens_since = trio.current_time()
        old, slot.current, slot.starting = slot.current, worker, None
        if slot.last is not None:
            self._report(f"worker {process.pid} replaces {slot.last}")
        slot.last = process.pid
        if old is not None:
            old.retire()
        if not self._has_served:
            self._has_served = True
            self._on_ready(report.server)

    def _ended(self, slot: _Slot, worker: _Worker, status: int) -> None:
        """Handle the end of a worker: free its slot (one of the ``count`` places for workers), and decide when the next
        worker may start there."""
        was_present, was_starting = slot.current is worker, slot.starting is worker
        if was_present:
            slot.current = None
        elif was_starting:
            slot.starting = None
        if self._is_ending or not (was_present or was_starting):
            return
        if not self._has_served:  # and none will
            self._status = max(status, 1)
            self.stop()
        elif slot.current is not None:
            self._failed = worker.generation
            self._report("the new version did not start; the old one keeps running")
        else:
            self._pause(slot, worker, status)

    def _pause(self, slot: _Slot, worker: _Worker, status: int) -> None:
        """Set the time at which another worker may start in place of ``worker``, which has ended. The pause is longer
        after repeated failures."""
        now = trio.current_time()
        is_early = worker.listens_since is None or now - worker.listens_since < _HEALTHY
        slot.failures = slot.failures + 1 if is_early else 0
        pause = min(_FIRST_PAUSE * 2.0 ** (slot.failures - 1), _LONGEST_PAUSE) if slot.failures else 0.0
        slot.not_before = now + pause
        pid = "that could not be started" if worker.process is None else worker.process.pid
        when = f" in {pause:g} s" if pause > _FIRST_PAUSE else ""
        self._report(f"worker {pid} has ended with status {status}; starting another{when}")


def report_in_a_thread(line: str) -> None:
    """Print a message for the user on standard error, in a thread, so that the supervisor needn't wait if standard
    error is blocked."""
    writer.put(partial(say, line), len(line))


def _has_terminal() -> bool:
    """Return whether the process has a controlling terminal that is still open. Closing a terminal sends SIGHUP."""
    with suppress(OSError):
        os.close(os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY))
        return True
    return False
