"""Machines that stop at any moment: the tasks of a replica that is stopped, or killed, take no step any more.

Everything runs in one trio program, on a virtual clock. A task belongs to the machine that was current when the task
was made. While a machine is stopped, its tasks are taken out of trio's queue as soon as they are ready, whatever has
woken them: a message, a deadline, a cancel. When the machine goes on, all of them are ready at once, and late, as in a
process after SIGSTOP and SIGCONT. trio has no way to do this in public, so this file knows its queue of ready tasks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import trio
from trio._core import _run as internals

from trio_mcp.stores import memory

_machine: ContextVar[Machine | None] = ContextVar("machine", default=None)


class Machine:
    """What a replica runs on."""

    def __init__(self) -> None:
        self.is_stopped = False
        self._ready: list[trio.lowlevel.Task] = []

    @contextmanager
    def current(self) -> Iterator[None]:
        """Have tasks that are made in the block belong to this machine."""
        token = _machine.set(self)
        try:
            yield
        finally:
            _machine.reset(token)

    def hold(self, task: trio.lowlevel.Task) -> None:
        """Keep a task that is ready from running."""
        self._ready.append(task)

    def stop(self) -> None:
        """Let no task of the machine take another step, but those whose turn has come already."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Let all tasks go on."""
        self.is_stopped = False
        ready, self._ready = self._ready, []
        internals.GLOBAL_RUN_CONTEXT.runner.runq.extend(ready)


class Schedule(trio.abc.Instrument):
    """Holds the tasks of stopped machines, and counts the ``steps`` of all others."""

    def __init__(self) -> None:
        self.steps = 0

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        machine = task.context.get(_machine)
        if machine is not None and machine.is_stopped:
            held = internals.GLOBAL_RUN_CONTEXT.runner.runq.pop()
            assert held is task, "the task that is ready is the last one of the queue"
            machine.hold(held)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1


def run(seed: int, program: Any, *arguments: Any) -> Any:
    """Run a program on a virtual clock, in an order that the seed decides, with its `Schedule` as the first
    argument."""
    before = internals._r.getstate(), internals._ALLOW_DETERMINISTIC_SCHEDULING, random._urandom, memory.time
    internals._r.seed(seed)
    internals._ALLOW_DETERMINISTIC_SCHEDULING = True
    random.seed(seed)  # the jitter of delays
    random._urandom = random.Random(seed).randbytes  # ids, tokens and marks
    memory.time = SimpleNamespace(time=lambda: 0.0)  # type: ignore[assignment] # storages round times to milliseconds
    schedule, clock = Schedule(), trio.testing.MockClock(autojump_threshold=0)
    try:
        return trio.run(program, schedule, *arguments, clock=clock, instruments=[schedule])
    finally:
        internals._r.setstate(before[0])
        internals._ALLOW_DETERMINISTIC_SCHEDULING = before[1]
        random._urandom = before[2]
        memory.time = before[3]
