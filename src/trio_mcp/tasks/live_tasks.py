"""LiveTasks: the tasks that run here, within their bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio

from ..jsonrpc.errors import TOO_BUSY, CodedError

if TYPE_CHECKING:
    from .request_task import RequestTask
    from .settings import TaskSettings


class LiveTasks:
    """The tasks that run here, by their ids. Each has a place, taken before its record is kept, so that tasks that
    are about to start count for the bounds of ``settings``, too."""

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = settings
        self._tasks: dict[str, RequestTask] = {}
        self._places = 0
        self._callers = Counter[object]()
        self._emptied = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[RequestTask]:
        """Return the present tasks, oldest first."""
        return iter(tuple(self._tasks.values()))

    def get(self, task_id: str) -> RequestTask | None:
        """Return the task that runs here under an id; `None` where there is none."""
        return self._tasks.get(task_id)

    @property
    def room(self) -> int:
        """Number of tasks that may still start here."""
        return max(0, self._settings.max_running - self._places)

    def take_place(self, caller: object, *, alone: bool) -> None:
        """Take a place for a task of ``caller``, who is ``alone`` here or leaves places for others. Raises `CodedError`
        (-31000) where there is none."""
        most = self._settings.max_running if alone else self._settings.max_running_of_caller
        if not self.room or self._callers[caller] >= most:
            raise CodedError(TOO_BUSY, "Too busy: too many tasks are running; try again later")
        self.take_any_place(caller)

    def take_any_place(self, caller: object) -> None:
        """Take a place for a task that was taken over when there was `room`."""
        self._places += 1
        self._callers[caller] += 1

    def give_back(self, caller: object) -> None:
        """Give back a place."""
        self._places -= 1
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]

    def add(self, task: RequestTask) -> None:
        """Add a task, which has a place."""
        self._tasks[task.id] = task

    def remove(self, task: RequestTask) -> None:
        """Remove a task that has ended here, and give back its place."""
        del self._tasks[task.id]
        self.give_back(task.caller)
        if not self._tasks:
            self._emptied.unpark_all()

    async def emptied(self) -> None:
        """Wait until no task runs here."""
        while self._tasks:
            await self._emptied.park()
