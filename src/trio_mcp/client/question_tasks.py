"""Sampling and elicitation requests that a server of 2025-11-25 sends as tasks, to fetch the answers later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    """The MCP tasks in which a client answers sampling and elicitation requests of its server. ``host`` runs these
    tasks, and ``handler`` answers the requests."""

    def __init__(self, host: RequestHost, handler: RequestHandler, settings: TaskSettings) -> None:
        # Pass an empty name, because sampling and elicitation requests have no names.
        self.host = TaskHost(host, handler, OutcomeReplies(), settings, lambda: ("",))
        self.methods = CoreMethods(self.host.records, self.host.questions, self.host.own_tasks)
        """Answers the server's requests about tasks, such as ``tasks/get``."""

    def task_for(self, scope: RequestScope) -> RequestTask | None:
        """Return the MCP task in which to answer a request of the server. Returns `None` if the server didn't request a
        task.

        The request's parameters have been checked. Raises `CodedError` if the task can't be created.
        """
        request, host = scope.request, self.host
        is_declared = request.revision.tasks == "core" and request.method.name != "roots/list"
        if not is_declared or request.params.get("task") is None:
            # By MCP 2025-11-25 (tasks page), the task parameter MUST be ignored if the client didn't declare tasks.
            return None
        return RequestTask(host, scope, ttl_ms=asked_ttl(scope, host.settings), on_restart="fail", must_be=True)

    async def run_task(self, task: RequestTask, scope: RequestScope, answer: Answer) -> Any:
        """Notify the server that ``task`` was created. Then run the handler of the sampling or elicitation request, and
        return its answer.

        The task stores the answer.
        """
        scope.task = task
        await task.start()
        return await answer()
