"""Tasks in both forms: of 2025-11-25, whose requestor asks for a task, and of the extension
``io.modelcontextprotocol/tasks``, whose server decides on tasks.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, cast

from ...classes import value
from ..fields import JSONObject
from .input_required import InputRequest

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


TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
TASKS_CAPABILITY: Final = f"extensions.{TASKS_EXTENSION}"
"""The path of the extension among the capabilities of a client or server."""


@value
class CreatedTask:
    """The result of a request that goes on as a task (``resultType`` is ``task``). Times in ISO 8601."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    """Milliseconds from the creation for which the task exists; null means for ever, and is therefore always
    written."""
    status_message: str | None = None
    poll_interval_ms: int | None = None
    meta: JSONObject | None = None


@value
class DetailedTask:
    """The state of a task, with its result, its error, or all questions without an answer. Result of ``tasks/get`` and
    parameters of ``notifications/tasks``."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    status_message: str | None = None
    poll_interval_ms: int | None = None
    result: JSONObject | None = None
    error: JSONObject | None = None
    input_requests: dict[str, InputRequest] | None = None
    meta: JSONObject | None = None


@value
class UpdateTaskParams:
    """Parameters of ``tasks/update``: answers to questions of the task, by their keys."""

    task_id: str
    input_responses: dict[str, Any]


def is_task(result: object) -> bool:
    """Return whether a plain result of a modern revision is a `CreatedTask`, well made or not."""
    return isinstance(result, dict) and cast("JSONObject", result).get("resultType") == "task"


def created_id(result: object, *, is_flat: bool) -> str | None:
    """Return the id of the task that a plain ``result`` creates: of a `CreatedTask` where results are ``is_flat``, else
    of a `CreateTaskResult`; `None` where ``result`` tells of no task."""
    if not isinstance(result, dict):
        return None
    task: Any = cast("JSONObject", result)
    if not is_flat:
        task = task.get("task")
    elif not is_task(task):
        return None
    task_id: Any = cast("JSONObject", task).get("taskId") if isinstance(task, dict) else None
    return task_id if isinstance(task_id, str) else None
