"""TaskProgress: the news of a task, while its result is waited for, as the progress of the call."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable

from ...concurrency.time_limits import call_limits
from ...runtime.on_progress import OnProgress, Progress
from ...tasks.task_state import TaskState

__all__ = ["TaskProgress"]


class TaskProgress:
    """Tells ``on_progress`` of the messages of a task, behind the progress of the call itself. What is heard starts the
    limits of `fail_after_silence` around the call anew."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._limits = tuple(limit for limit in call_limits() if limit.renewed)
        self._progress = 0.0
        self._message: str | None = None
        self._heard: object = None

    @property
    def of_call(self) -> OnProgress | None:
        """The callback for the progress of the call itself."""
        return None if self._on_progress is None else self._progressed

    def _progressed(self, progress: Progress) -> Awaitable[None] | None:
        assert self._on_progress is not None, "else nothing is given"
        self._progress, self._message = max(self._progress, progress.progress), progress.message
        return self._on_progress(progress)

    async def told(self, state: TaskState) -> None:
        """Take a state of the task. Progress only grows, so each message counts as one step more."""
        heard = (state.status, state.message, state.updated_at)
        if heard == self._heard:
            return
        self._heard = heard
        for limit in self._limits:
            limit.heard()
        if state.message is None or state.message == self._message:
            return
        self._message = state.message
        self._progress = max(self._progress + 1, math.nextafter(self._progress, math.inf))
        if self._on_progress is not None:
            pending = self._on_progress(Progress(self._progress, None, state.message))
            if inspect.isawaitable(pending):
                await pending
