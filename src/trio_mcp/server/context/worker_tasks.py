"""Tasks for plain ``def`` handlers, which run in worker threads: `WorkerTask` and `WorkerTasks`."""

from __future__ import annotations

from ...runtime.requests.scope import RequestScope
from .tasks import CallerTasks, TaskContext
from .worker_calls import blocking, in_trio, passthrough


class WorkerTask:
    """`TaskContext` for worker threads. Methods that are async in `TaskContext` block in this class."""

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
    """`CallerTasks` for worker threads. Every method blocks."""

    def __init__(self, tasks: CallerTasks, scope: RequestScope | None) -> None:
        self._original = tasks
        self._scope = scope

    create_task = blocking(CallerTasks.create_task)
    get_task = blocking(CallerTasks.get_task)
    get_task_result = blocking(CallerTasks.get_task_result)
    store_task_result = blocking(CallerTasks.store_task_result)
    update_task_status = blocking(CallerTasks.update_task_status)
    list_tasks = blocking(CallerTasks.list_tasks)
