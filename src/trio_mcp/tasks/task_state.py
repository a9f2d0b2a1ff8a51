"""`TaskState`: the state of a background task, in a form for both 2025-11-25 and the tasks extension."""

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
    """The state of a background task, as reported by the peer that runs the task."""

    id: str
    """The id of the task."""
    status: TaskStatus
    """The status of the task."""
    message: str | None
    """Text for users that describes the current status."""
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
        """True if the task has ended, so that its status can no longer change."""
        return self.status in FINAL


class TaskCancelled(MCPError):
    """Raised in place of a background task's result, because the task was cancelled."""

    def __init__(self, task_id: str, message: str | None) -> None:
        super().__init__(task_id, message)
        self.task_id = task_id
        """The id of the task."""
        self.message = message
        """The last status message of the task, a text for users."""

    def __str__(self) -> str:
        return f"the task was cancelled: {clean(self.message)}" if self.message else "the task was cancelled"


def state_of(task: Task | CreatedTask | DetailedTask) -> TaskState:
    """Return the `TaskState` for a task object that the peer has sent, in the form of 2025-11-25 or of the tasks
    extension."""
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
    """Convert a time from milliseconds to seconds.

    The result is limited, because a JSON integer may be too large for a float.
    """
    return None if milliseconds is None else max(0, min(milliseconds, _LONGEST_MS)) / 1000
