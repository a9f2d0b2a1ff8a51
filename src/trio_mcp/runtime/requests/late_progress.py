"""LateProgress lets out the values that a reporter's interval held back, when it is over."""

from __future__ import annotations

from collections import deque

import trio

from ...concurrency.on_demand import OnDemand
from .progress import ProgressReporter

__all__ = ["LateProgress"]


class LateProgress:
    """Lets out late progress values of all reporters of a connection, from one task instead of a timer for each."""

    def __init__(self) -> None:
        self._waiting: deque[ProgressReporter] = deque()
        self.task = OnDemand()

    def add(self, reporter: ProgressReporter) -> None:
        """Note that ``reporter`` keeps a value that is not due yet. Called once for each value it starts to keep."""
        self._waiting.append(reporter)
        self.task.wake(self._run)

    def let_go(self) -> None:
        """Let nothing out any more, since the connection is over."""
        self._waiting.clear()

    async def _run(self) -> None:
        """Let values out, in the order they were added: never early, and at most one interval late, since all
        intervals are the same."""
        while True:
            while not self._waiting:
                await self.task.sleep()
            due = self._waiting[0].due  # and no reference to the reporter: this frame would keep its request alive
            if due is not None and due > trio.current_time():
                await trio.sleep_until(due)
            else:
                self._waiting.popleft().let_out()
