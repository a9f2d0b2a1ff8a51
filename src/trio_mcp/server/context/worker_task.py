"""WorkerTask: the view that a plain ``def`` handler has of its task, from its worker thread."""

from __future__ import annotations

from typing import Any

import trio

from ...concurrency.workers import await_in_worker
from .task_context import TaskContext


class WorkerTask:
    """The members of `TaskContext`, for a worker thread: members that are async there block here."""

    def __init__(self, task: TaskContext) -> None:
        self._task = task

    @property
    def id(self) -> str:
        """The unguessable name of the task. See `TaskContext.id`."""
        return self._task.id

    @property
    def ttl(self) -> float | None:
        """Seconds for which the task exists. See `TaskContext.ttl`."""
        return self._task.ttl

    @property
    def requested_ttl(self) -> float | None:
        """Seconds that the requestor wishes for. See `TaskContext.requested_ttl`."""
        return self._task.requested_ttl

    @property
    def has_started(self) -> bool:
        """True once the request was answered with the task. See `TaskContext.has_started`."""
        return self._task.has_started

    @property
    def attempt(self) -> int:
        """The number of this run. See `TaskContext.attempt`."""
        return self._task.attempt

    @property
    def restored(self) -> Any:
        """The last checkpoint of a run before. See `TaskContext.restored`."""
        return self._task.restored

    def status(self, message: str) -> None:
        """Tell the client how the task is. See `TaskContext.status`."""
        trio.from_thread.run_sync(self._task.status, message)

    def start(self) -> None:
        """Answer the request with the task, now. See `TaskContext.start`."""
        await_in_worker(self._task.start)

    def checkpoint(self, value: Any) -> None:
        """Keep a value for a run after a restart. See `TaskContext.checkpoint`."""
        await_in_worker(lambda: self._task.checkpoint(value))
