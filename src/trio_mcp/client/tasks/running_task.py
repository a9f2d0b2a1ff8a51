"""RunningTask: a call that goes on in the server, whether or not somebody waits for its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ...protocol.types.tools import CallToolResult
from ...runtime.on_progress import OnProgress
from ...tasks.requesting.remote_task import RemoteTask
from ...tasks.task_state import TaskState

__all__ = ["RunningTask", "WaitForResult"]

WaitForResult: TypeAlias = Callable[[RemoteTask, OnProgress | None], Awaitable[CallToolResult]]
"""Waits for the result of a task of the server."""


class RunningTask:
    """A task of the server, made by `Client.start_task` or `Client.resume_task`.

    Where the server has answered the call at once, there is no task: ``id`` is `None`, and `result` has the answer.
    Methods may be called from any task, any number at a time. Each raises as a call does, and a `PeerError` with code
    -32602 for a task that is unknown, that of somebody else, or kept no longer.
    """

    def __init__(self, task: RemoteTask | None, answer: CallToolResult | None, wait: WaitForResult) -> None:
        self._task = task
        self._answer = answer
        self._wait = wait

    @property
    def id(self) -> str | None:
        """The id of the task. Keep the id to come back to the task by `Client.resume_task`, also from another process;
        and keep the id secret, since it may be all that is needed to read the result. `None`: there is no task."""
        return None if self._task is None else self._task.id

    async def get(self) -> TaskState:
        """Ask the server how the task is. Raises `RuntimeError` where there is no task."""
        return await self._there_is().get()

    async def result(self, *, on_progress: OnProgress | None = None) -> CallToolResult:
        """Wait for the end of the task, have its questions answered by the handlers of the client, and return its
        result; may be called again.

        Leaving the wait cancels nothing. ``on_progress`` gets the messages of the task, as in `Client.call_tool`.
        Raises `PeerError` with the error of a task that failed, and `TaskCancelled` for a task that was cancelled.
        ``call_timeout`` limits each look at the task, and not the wait.
        """
        if self._task is None:
            assert self._answer is not None, "a call has an answer or a task"
            return self._answer
        return await self._wait(self._task, on_progress)

    async def cancel(self) -> None:
        """Ask the server to cancel the task, and wait until the server knows. A task that has ended stays as it is.
        Raises `RuntimeError` where there is no task."""
        await self._there_is().cancel()

    def _there_is(self) -> RemoteTask:
        if self._task is None:
            raise RuntimeError("there is no task: the server answered at once, so only result() makes sense")
        return self._task
