"""CoreClient is the party that has asked for a task in the form of 2025-11-25, where it was when it asked."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from ...jsonrpc.codec import frame_notification
from ...protocol.converters import unstructure
from ...protocol.errors import NoWayBack
from ..projections import core_task
from .questions import Asker

if TYPE_CHECKING:
    from ...runtime.on_progress import OnProgress
    from ...stores.task_store import TaskRecord
    from .questions import ClientWay, CoreQuestions


class CoreClient(Asker):
    """Tells the requestor of the task ``task_id``, by ``way``, of each status, and asks there what the task has to ask.

    What waits to be told is the latest status alone; nothing waits for a client that is away or reads nothing, since no
    client may rely on being told (2025-11-25 tasks, Task Notifications).
    """

    __slots__ = ("_status",)

    def __init__(self, questions: CoreQuestions, task_id: str, way: ClientWay) -> None:
        super().__init__(questions, task_id, way)
        self._status = "working"

    def seen(self, record: TaskRecord) -> None:
        """Take the next record of the task. Synchronous."""
        self._tell(record)
        self.look(record)

    def _tell(self, record: TaskRecord) -> None:
        task, way = core_task(record), self.way
        if task.status == self._status or not way.is_open:
            return
        way.outbox.withdraw(self)
        if not way.outbox.is_full():
            self._status = task.status
            line = frame_notification("notifications/tasks/status", unstructure(task, way.revision))
            way.outbox.put(line + b"\n", self)

    def ask(self, method: str, params: dict[str, Any] | None, on_progress: OnProgress | None) -> Awaitable[Any]:
        """Send a request of the handler that is no question. Raises `NoWayBack` while the client is away."""
        if not self.way.is_open:
            raise NoWayBack("the client that has asked for this task is away")
        return self.way.ask(method, params, self._task_id, on_progress)
