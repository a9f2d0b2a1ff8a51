"""`TaskState`: the state of a task as its receiver reports it, in one form for both protocol versions."""

from __future__ import annotations

from typing import Final

from ..classes import value
from ..jsonrpc.errors import MCPError, clean
from ..protocol.types.tools import CreatedTask, DetailedTask, Task, TaskStatus

FINAL: Final = frozenset(("completed", "failed", "cancelled"))
"""The statuses of tasks that have ended."""
_LONGEST_MS: Final = 10**15


@value
class TaskState:
    """The state of a task, as reported by the peer that runs it."""

    id: str
    """The id of the task."""
    status: TaskStatus
    """The status of the task."""
    message: str | None
    """Text for people that describes the current status."""
    created_at: str
    """Time at which the task was created, in ISO 8601, as received."""
    updated_at: str
    """Time at which the task last changed, in ISO 8601, as received."""
    ttl: float | None
    """Time to live in seconds from the creation. `None` for no limit."""
    poll_interval: float | None
    """Seconds between polls that the receiver requests. `None` if it requests no interval."""

    @property
    def is_final(self) -> bool:
        """True if the task has ended. Its status then cannot change any more."""
        return self.status in FINAL


class TaskCancelled(MCPError):
    """Raised if the other side cancelled the task, which therefore has no result."""

    def __init__(self, task_id: str, message: str | None) -> None:
        super().__init__(task_id, message)
        self.task_id = task_id
        """The id of the task."""
        self.message = message
        """The last status message of the task, for people."""

    def __str__(self) -> str:
        return f"the task was cancelled: {clean(self.message)}" if self.message else "the task was cancelled"


def state_of(task: Task | CreatedTask | DetailedTask) -> TaskState:
    """Return the state in ``task``, a task object of either protocol version."""
    ttl, interval = (task.ttl, task.poll_interval) if isinstance(task, Task) else (task.ttl_ms, task.poll_interval_ms)
    return TaskState(
        task.task_id,
        task.status,
        task.status_message,
        task.created_at,
        task.last_updated_at,
        _seconds(ttl),
        _seconds(interval),
    )


def _seconds(milliseconds: int | None) -> float | None:
    """Return a time in seconds. It is bounded, because a float cannot hold every integer in JSON."""
    return None if milliseconds is None else max(0, min(milliseconds, _LONGEST_MS)) / 1000
