"""WorkerTask and WorkerTasks: the tasks of a plain ``def`` handler, in its worker thread."""

from __future__ import annotations

from ...runtime.requests.scope import RequestScope
from .tasks import CallerTasks, TaskContext
from .worker_calls import blocking, in_trio, passthrough


class WorkerTask:
    """The members of `TaskContext`, for a worker thread: members that are async there block here."""

    def __init__(self, task: TaskContext, scope: RequestScope | None) -> None:
        self._original = task
        self._scope = scope

    id = passthrough(TaskContext.id)
    ttl = passthrough(TaskContext.ttl)
    requested_ttl = passthrough(TaskContext.requested_ttl)
    has_started = passthrough(TaskContext.has_started)
    attempt = passthrough(TaskContext.attempt)
    restored = passthrough(TaskContext.restored)
    restored_as = passthrough(TaskContext.restored_as)
    status = in_trio(TaskContext.status)
    start = blocking(TaskContext.start)
    checkpoint = blocking(TaskContext.checkpoint)


class WorkerTasks:
    """The members of `CallerTasks`, for a worker thread: each call blocks."""

    def __init__(self, tasks: CallerTasks, scope: RequestScope | None) -> None:
        self._original = tasks
        self._scope = scope

    create_task = blocking(CallerTasks.create_task)
    get_task = blocking(CallerTasks.get_task)
    get_task_result = blocking(CallerTasks.get_task_result)
    store_task_result = blocking(CallerTasks.store_task_result)
    update_task_status = blocking(CallerTasks.update_task_status)
    list_tasks = blocking(CallerTasks.list_tasks)
