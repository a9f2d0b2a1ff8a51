"""MessageWriter writes the words that tasks tell of their state into their records."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from ..concurrency.wakeups import Sleeper
from .transitions import noted

if TYPE_CHECKING:
    from ..stores.task_store import TaskRecord
    from .records import TaskRecords
    from .request_task import RequestTask


class MessageWriter:
    """Writes the latest words of each task, at most once in ``interval`` seconds, so that no handler waits."""

    def __init__(self, records: TaskRecords, interval: float) -> None:
        self._records = records
        self._interval = interval
        self._unwritten: dict[str, RequestTask] = {}
        self._sleeper = Sleeper()

    def has_words(self, task: RequestTask) -> None:
        """Have the message of ``task`` written before long. Synchronous."""
        self._unwritten[task.id] = task
        self._sleeper.wake()

    def forget(self, task: RequestTask) -> None:
        """Write nothing more for ``task``."""
        self._unwritten.pop(task.id, None)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            while not self._unwritten:
                await self._sleeper.sleep()
            tasks, self._unwritten = list(self._unwritten.values()), {}
            for task in tasks:
                await self._write(task)
            await trio.sleep(self._interval)

    async def _write(self, task: RequestTask) -> None:
        message = task.message
        if message is None:
            return
        with suppress(Exception):  # the log was told, and the next message comes before long
            await self._records.change(task.id, task.holder, lambda record, now: _of_ours(record, now, message))


def _of_ours(record: TaskRecord, now: int, message: str) -> TaskRecord | None:
    return None if record.is_external else noted(record, now, message)  # others tell how their work goes
