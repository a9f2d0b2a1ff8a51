"""TaskState: the word of a receiver on its task, in one form for both protocols."""

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
    """The state of a task. ``created_at`` and ``updated_at`` are ISO 8601, as received; ``ttl`` is the life of the
    task in seconds from its creation, `None` for ever; ``poll_interval`` the seconds from one look to the next that the
    receiver wishes for, `None` without a wish."""

    id: str
    """Id of the task."""
    status: TaskStatus
    """Status of the task."""
    message: str | None
    """Text for people on the present status."""
    created_at: str
    updated_at: str
    ttl: float | None
    poll_interval: float | None

    @property
    def is_final(self) -> bool:
        """True for a task that has ended: its status changes no more."""
        return self.status in FINAL


class TaskCancelled(MCPError):
    """The task was cancelled, by somebody else: there is no result. ``message`` is the last message of the task."""

    def __init__(self, task_id: str, message: str | None) -> None:
        super().__init__(task_id, message)
        self.task_id = task_id
        self.message = message

    def __str__(self) -> str:
        return f"the task was cancelled: {clean(self.message)}" if self.message else "the task was cancelled"


def state_of(task: Task | CreatedTask | DetailedTask) -> TaskState:
    """Return the state that ``task`` tells, in either protocol."""
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
    """Return a time in seconds. Bounded, since no float holds all integers of JSON."""
    return None if milliseconds is None else max(0, min(milliseconds, _LONGEST_MS)) / 1000
