"""Who takes part in the life of a task that is explored, and how much may happen."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from typing import Final

import attrs
from tests.exhaustive.held_store import Called

from trio_mcp.stores.task_store import TaskRecord
from trio_mcp.tasks.request_task import RequestTask
from trio_mcp.tasks.transitions import RunPhase, RunStep, phase_after

__all__ = ["NEW", "Operation", "Run", "TaskPlan", "content_of"]

NEW: Final = TaskRecord(
    id="task",
    scope="",
    method="tools/call",
    name="tool",
    params=b"{}",
    revision="2025-11-25",
    capabilities=b"{}",
    on_restart="again",
    poll_ms=1,
    holder="0:0",
    mark=b"new",
)


@attrs.frozen
class TaskPlan:
    """How much may happen."""

    failures: int
    """Calls of the store that do not answer."""
    expiries: int = 1
    """Leases that expire while their holder lives."""
    renewals: int = 1
    """Leases that are renewed after they have expired."""
    deaths: int = 0
    cancels: int = 1
    questions: int = 0


class Run:
    """A run of the task in one process, with the methods of `RequestTask` that decide whose the task is."""

    acquire, reacquire, is_of, accepts = (
        RequestTask.acquire,
        RequestTask.reacquire,
        RequestTask.is_of,
        RequestTask.accepts,
    )

    def __init__(self, record: TaskRecord, until: float, phase: RunPhase) -> None:
        self.holder, self.epoch, self.mark, self.held_until = record.holder, record.epoch, record.mark, until
        self.attempt = record.attempt
        self.phase = phase

    def step(self, step: RunStep) -> None:
        self.phase = phase_after(self.phase, step)


@attrs.define
class Operation:
    """A change that is under way: its coroutine waits for the store."""

    name: str
    process: int | None
    holder: Callable[[], str | None]
    transition: Callable[[TaskRecord, int], TaskRecord | None]
    running: Coroutine[Called, str, TaskRecord | None] | None = None
    called: Called = attrs.field(factory=Called)
    written: bytes = b""
    """Mark of the last write of which nobody knows whether it was kept."""
    tries: int = 0
    ours: str | None = None
    until: float = 0.0
    """End of the lease, for the operation that begins a run."""


def content_of(record: TaskRecord) -> Hashable:
    """Return what a record says, without the lease and what differs from run to run."""
    outcome = record.outcome and record.outcome.json
    asked = tuple(record.questions), tuple(record.answers)
    return record.phase, record.attempt, *asked, outcome, record.cancel_reason
