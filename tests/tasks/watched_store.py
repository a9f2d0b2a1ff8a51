"""A store that looks at each change of each record, whoever makes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import TaskRecord

__all__ = ["WatchedStore"]


class WatchedStore(MemoryTaskStore):
    """The records in memory, and what may never become of one."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.owners: dict[tuple[str, int], str | None] = {}
        """Who had each task, by its id and the number of the ownership."""
        self.writers: dict[str, list[str]] = {}
        """The holders that have written each record, in their order."""
        self.answers: dict[str, Mapping[str, bytes]] = {}
        """The last answers that each record had."""

    async def change(
        self, record: TaskRecord, *, expected_mark: bytes, holder: str | None, give_up: bool = False
    ) -> bool:
        before = await self.read(None, record.id)
        changed = await super().change(record, expected_mark=expected_mark, holder=holder, give_up=give_up)
        after = await self.read(None, record.id)
        if before is not None and after is not None:
            self._compare(before.record, after.record)
            if changed and holder is not None:
                self._has_written(record.id, holder)
        return changed

    def _has_written(self, task_id: str, holder: str) -> None:
        writers = self.writers.setdefault(task_id, [])
        if holder in writers[:-1]:
            self.faults.append(f"{task_id} is written by a former holder")
        elif writers[-1:] != [holder]:
            writers.append(holder)

    async def claim(self, holder: str, *, lease_ms: int, limit: int, names: Collection[str]) -> Sequence[TaskRecord]:
        before = {record.id: record for record in await self.page("", None, 10_000)}
        claimed = await super().claim(holder, lease_ms=lease_ms, limit=limit, names=names)
        for record in claimed:
            self._compare(before[record.id], record)
            if before[record.id].leased_until >= record.leased_until - lease_ms:
                self.faults.append(f"{record.id} was taken from a living owner")
        return claimed

    def _compare(self, before: TaskRecord, after: TaskRecord) -> None:
        task_id = before.id
        if after.answers:
            self.answers[task_id] = after.answers
        if after.phase.is_final and (len(after.params), len(after.answers)) != (2, 0):
            self.faults.append(f"{task_id} keeps what nobody needs")
        if after.epoch < before.epoch or after.version < before.version:
            self.faults.append(f"{task_id} goes back")
        if before.phase.is_final and (before.phase, before.outcome) != (after.phase, after.outcome):
            self.faults.append(f"{task_id} ends twice: {before.outcome}, {after.outcome}")
        if not after.phase.is_final and any(after.answers.get(key) != answer for key, answer in before.answers.items()):
            self.faults.append(f"{task_id} loses an answer")
        lost = before.questions.keys() - after.questions.keys() - after.answers.keys()
        if lost and not after.phase.is_final:
            self.faults.append(f"{task_id} loses the questions {lost}")
        if after.questions.keys() & after.answers.keys():
            self.faults.append(f"{task_id} asks what was answered")
        if after.holder is not None and self.owners.setdefault((task_id, after.epoch), after.holder) != after.holder:
            self.faults.append(f"{task_id} has two owners of one epoch")
