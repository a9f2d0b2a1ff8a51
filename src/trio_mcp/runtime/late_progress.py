"""LateProgress: values that a reporter's interval held back, let out when it is over."""

from __future__ import annotations

from collections import deque

import trio

from .on_demand import OnDemand
from .progress import ProgressReporter

__all__ = ["LateProgress"]


class LateProgress:
    """One task for all reporters of a connection, instead of a timer for each."""

    def __init__(self) -> None:
        self._waiting: deque[ProgressReporter] = deque()
        self.task = OnDemand()

    def add(self, reporter: ProgressReporter) -> None:
        """``reporter`` keeps a value that is not due yet. Called once for each value that it starts to keep."""
        self._waiting.append(reporter)
        self.task.wake(self._run)

    def let_go(self) -> None:
        """The connection is over: nothing is let out any more."""
        self._waiting.clear()

    async def _run(self) -> None:
        """Let values out, in the order they were added: never early, and at most one interval late, since all
        intervals are the same."""
        while True:
            while not self._waiting:
                await self.task.sleep()
            due = self._waiting[0].due  # no more of it: who sleeps would keep its request alive
            if due is not None and due > trio.current_time():
                await trio.sleep_until(due)
            else:
                self._waiting.popleft().let_out()
