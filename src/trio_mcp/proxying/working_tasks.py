"""WorkingTasks: the tasks that the server behind works on, as far as its answers have told."""

from __future__ import annotations

import math
from typing import Any, Final

import trio

from ..protocol.fields import JSONObject
from ..tasks.task_state import FINAL

_MOST: Final = 1000


class WorkingTasks:
    """The latest 1,000 tasks that have not ended, as far as is known. The end of the connection is the end of the tasks
    of a child process, and of any server that keeps tasks with the connection."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def until(self) -> float:
        """Return the time on trio's clock at which all tasks are over; ``-inf`` where none is known, ``inf`` where one
        has no end of its own."""
        now = trio.current_time()
        self._ends = {task_id: end for task_id, end in self._ends.items() if end > now}
        return max(self._ends.values(), default=-math.inf)

    def note(self, task_id: str, told: JSONObject) -> None:
        """Note the words of the server on a task."""
        self._ends.pop(task_id, None)
        if told.get("status") in FINAL:
            return
        ttl: Any = told.get("ttlMs", told.get("ttl"))
        known = type(ttl) in (int, float) and ttl >= 0
        self._ends[task_id] = trio.current_time() + ttl / 1000 if known else math.inf
        if len(self._ends) > _MOST:
            del self._ends[next(iter(self._ends))]

    def ended(self, task_id: str) -> None:
        """Note that a task has ended."""
        self._ends.pop(task_id, None)
