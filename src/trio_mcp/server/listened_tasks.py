"""ListenedTasks tells a stream of changes of the tasks that its client listens to."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import trio

from ..concurrency.wakeups import Sleeper
from ..protocol.revisions import Revision
from ..stores.task_store import TaskRecord
from ..tasks.records import TaskRecords
from ..tasks.task_state import extension_task
from .listen_stream import ListenStream

_RETRY: Final = 1.0


class ListenedTasks:
    """The tasks of ``scope`` that ``stream`` reports, read from the ``records``.

    The client is told the state of each task at once, since a task may have changed, or ended, before the client
    listened; from then on each change. Of several changes that come while the client reads slowly, the last one is
    told.
    """

    def __init__(self, records: TaskRecords, scope: str, stream: ListenStream, revision: Revision) -> None:
        self._records = records
        self._scope = scope
        self._stream = stream
        self._revision = revision
        self._changed = dict.fromkeys(stream.task_ids)
        """Tasks that are to be read, in the order of their changes."""
        self._told: dict[str, Hashable] = dict.fromkeys(stream.task_ids, ())
        """State that was told last of each task that may still change."""
        self._sleeper = Sleeper()

    async def run(self) -> None:
        """Tell the changes until no task can change any more."""
        for task_id in self._told:
            self._records.observe(task_id, self._note)
        try:
            while self._told:
                while self._changed:
                    await self._stream.room()
                    await self._look_at(self._next())
                if self._told:
                    await self._sleeper.sleep()
        finally:
            for task_id in self._told:
                self._records.leave_alone(task_id, self._note)

    def _note(self, task_id: str) -> None:
        self._changed[task_id] = None
        self._sleeper.wake()

    def _next(self) -> str:
        task_id = next(iter(self._changed))
        del self._changed[task_id]
        return task_id

    async def _look_at(self, task_id: str) -> None:
        if task_id not in self._told:
            return
        try:
            record = await self._records.read(self._scope, task_id)
        except Exception:  # the log was told
            self._changed[task_id] = None
            await trio.sleep(_RETRY)
            return
        if record is not None and (state := _shown(record)) != self._told[task_id]:
            self._told[task_id] = state
            self._stream.task_changed(extension_task(record, self._revision))
        if record is None or record.phase.is_final:
            del self._told[task_id]
            self._records.leave_alone(task_id, self._note)


def _shown(record: TaskRecord) -> Hashable:
    """Return the parts of a record that change, and that a client sees."""
    return record.updated_at, record.phase, record.message, *record.questions
