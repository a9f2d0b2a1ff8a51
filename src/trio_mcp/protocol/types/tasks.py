"""Tasks in the form of 2025-11-25, whose requestor asks for a task."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ...jsonrpc.values import value
from ..fields import JSONObject

TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]


@value
class TaskMetadata:
    """A request for a task. ``ttl`` in milliseconds."""

    ttl: float | None = None


@value
class Task:
    """State of a task. Times in ISO 8601, ``poll_interval`` in milliseconds."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    """Milliseconds for which the result is kept; null means for ever, and is therefore always written."""
    status_message: str | None = None
    poll_interval: int | None = None
    meta: JSONObject | None = None


@value
class CreateTaskResult:
    """The answer to a request that asked for a task. The result itself comes with ``tasks/result``."""

    task: Task
    meta: JSONObject | None = None


@value
class TaskParams:
    """The task of ``tasks/get``, ``tasks/result`` and ``tasks/cancel``, in both forms of tasks."""

    task_id: str


@value
class ListTasksResult:
    """A page of tasks."""

    tasks: list[Task]
    next_cursor: str | None = None
    meta: JSONObject | None = None
