"""QuestionTasks: the questions that a server of 2025-11-25 has its client answer as tasks."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import trio

from ..runtime.requests.scope import RequestScope
from ..tasks.host import TaskHost
from ..tasks.record_writers import OutcomeReplies
from ..tasks.request_task import RequestTask
from ..tasks.task_methods import CoreMethods, asked_ttl
from .answers import Answer

if TYPE_CHECKING:
    from ..runtime.requests.host import RequestHandler, RequestHost
    from ..tasks.settings import TaskSettings


class QuestionTasks:
    """The tasks that a client runs for its server, in ``host``: questions answered by ``handler``."""

    def __init__(self, host: RequestHost, handler: RequestHandler, settings: TaskSettings) -> None:
        self._host = TaskHost(host, handler, OutcomeReplies(), settings, lambda: ("",))  # questions have no names
        self._methods = CoreMethods(self._host.records, self._host.questions, self._host.own_tasks)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look after the tasks until cancelled: see `TaskHost.run`."""
        await self._host.run(task_status=task_status)

    def shut_down(self) -> None:
        """Cancel all tasks, since the client is being closed. Synchronous."""
        self._host.shut_down(hurry=True)

    def answer(self, scope: RequestScope) -> Awaitable[Any]:
        """Answer a method of tasks. Raises `CodedError`."""
        return self._methods.answer(scope)

    def task_for(self, scope: RequestScope) -> RequestTask | None:
        """Return the task that the question of this request, whose parameters were checked, is to be; `None` where no
        task was asked for. Raises `CodedError`."""
        request, host = scope.request, self._host
        is_declared = request.revision.tasks == "core" and request.method.name != "roots/list"
        if not is_declared or request.params.get("task") is None:
            return None  # 2025-11-25 tasks, Task Support 1: MUST be ignored where not declared
        return RequestTask(host, scope, ttl_ms=asked_ttl(scope, host.settings), on_restart="fail", must_be=True)

    async def run_task(self, task: RequestTask, scope: RequestScope, answer: Answer) -> Any:
        """Tell the server of the ``task``, and return the answer then, which the task keeps."""
        scope.task = task
        await task.start()
        return await answer()
