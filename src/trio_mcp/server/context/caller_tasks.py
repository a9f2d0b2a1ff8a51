"""CallerTasks: the tasks of the caller of one request, ``ctx.task_store``."""

from __future__ import annotations

import math
from typing import Final

from ...jsonrpc.values import value
from ...runtime.requests.request_scope import RequestScope
from ...tasks.host import TaskHost
from ...tasks.request_task import RequestTask
from ...tasks.task_methods import scope_of
from ...tasks.task_state import TaskState
from .kept_tasks import KeptTasks, state_in

_PAGE: Final = 100
_MILLISECONDS: Final = 1000


@value
class TaskPage:
    """A page of tasks, oldest first. ``next_cursor`` leads to the next page; `None` at the end."""

    tasks: list[TaskState]
    next_cursor: str | None = None


class CallerTasks(KeptTasks):
    """The tasks of one principal; where the transport knows no principal, all tasks that belong to none."""

    def __init__(self, host: TaskHost, request: RequestScope) -> None:
        super().__init__((host.records,), scope_of(request))
        self._host = host
        self._request = request

    async def create_task(self, *, ttl: float | None = None, message: str | None = None) -> TaskState:
        """Create a task for work that is done elsewhere, and return its state. The task ends when somebody stores its
        result: see `KeptTasks`; or fails after ``ttl`` seconds, by default as the call's own task.

        In a call that is, or may become, a task, the first such task is the task of the call: the call is answered with
        the task at once (`TaskContext.start`). A handler that returns the state leaves the task to others:

            @server.tool(task="required")
            async def render(scene: str, ctx: RequestContext) -> TaskState:
                task = await ctx.task_store.create_task()
                await queue.put(task.id, scene)
                return task

        A handler that raises, or returns anything else, ends the task with that. `update_task_status`, and no longer
        `TaskContext.status`, tells how the work goes. All further tasks, and a task that is
        created in an ordinary call, are tasks of their own; their ids are the handler's to tell.

        Raises `CodedError` (-31000) where there are too many tasks, and `ValueError` for a ``ttl`` that is not greater
        than 0; ``math.inf``: for ever. A ``ttl`` is shortened to `TaskSettings.max_ttl`.
        """
        own = self._request.task
        if isinstance(own, RequestTask) and not own.is_external:
            ttl_ms = own.ttl_ms if ttl is None else self._milliseconds(ttl)
            await own.give_away(ttl_ms, message)
            return await self.get_task(own.id)
        self._request.request.unpack()  # the parameters are kept with the new task, too
        settings = self._host.settings
        ttl_ms = self._milliseconds(settings.ttl if ttl is None else ttl)
        task = RequestTask(self._host, self._request, ttl_ms=ttl_ms, on_restart="fail", is_external=True)
        if message is not None:
            task.tell(message)
        return state_in(await self._host.create_elsewhere(task))

    def _milliseconds(self, ttl: float) -> int | None:
        if not ttl > 0:
            raise ValueError(f"ttl must be greater than 0, not {ttl!r}")
        seconds = min(ttl, self._host.settings.max_ttl)
        return None if seconds == math.inf else max(1, int(seconds * _MILLISECONDS))

    async def list_tasks(self, cursor: str | None = None) -> TaskPage:
        """Return a page of the caller's tasks, in the order of their creation. ``cursor``: the `TaskPage.next_cursor`
        of the page before, which stays good when its tasks are gone. Raises `CodedError` (-32602) for a text that
        is no cursor."""
        page = await self._host.records.page(self._scope or "", cursor, _PAGE)
        return TaskPage([state_in(record) for record in page.records], page.next_cursor)
