"""WorkerTasks: the tasks of a caller, for a plain ``def`` handler in its worker thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, TypeVar

from ...concurrency.workers import await_in_worker
from ...protocol.types.tools import CallToolResult
from ...tasks.task_state import TaskState
from .caller_tasks import CallerTasks, TaskPage
from .kept_tasks import TaskOutcome

T = TypeVar("T")


def _wait_for(call: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    return await_in_worker(partial(call, *args, **kwargs))


class WorkerTasks:
    """The members of `CallerTasks`, for a worker thread: each call blocks."""

    def __init__(self, tasks: CallerTasks) -> None:
        self._tasks = tasks

    def create_task(self, *, ttl: float | None = None, message: str | None = None) -> TaskState:
        """Create a task for work that is done elsewhere. See `CallerTasks.create_task`."""
        return _wait_for(self._tasks.create_task, ttl=ttl, message=message)

    def get_task(self, task_id: str) -> TaskState:
        """Return the state of a task. See `KeptTasks.get_task`."""
        return _wait_for(self._tasks.get_task, task_id)

    def get_task_result(self, task_id: str) -> CallToolResult:
        """Return the result of a task. See `KeptTasks.get_task_result`."""
        return _wait_for(self._tasks.get_task_result, task_id)

    def store_task_result(self, task_id: str, status: Literal["completed", "failed"], result: TaskOutcome) -> bool:
        """End a task with its result. See `KeptTasks.store_task_result`."""
        return _wait_for(self._tasks.store_task_result, task_id, status, result)

    def update_task_status(self, task_id: str, status: str, message: str | None = None) -> bool:
        """Tell how a task is. See `KeptTasks.update_task_status`."""
        return _wait_for(self._tasks.update_task_status, task_id, status, message)

    def list_tasks(self, cursor: str | None = None) -> TaskPage:
        """Return a page of the caller's tasks. See `CallerTasks.list_tasks`."""
        return _wait_for(self._tasks.list_tasks, cursor)
