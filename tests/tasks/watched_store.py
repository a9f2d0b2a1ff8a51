"""A store that looks at each change of each record, whoever makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_record import TaskRecord
from trio_mcp.stores.task_store import Claim

__all__ = ["WatchedStore"]


class WatchedStore(MemoryTaskStore):
    """The records in memory, and what may never become of one."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.owners: dict[tuple[str, int], str | None] = {}
        """Who had each task, by its id and the number of the ownership."""
        self.answers: dict[str, Mapping[str, bytes]] = {}
        """The last answers that each record had."""

    async def change(self, record: TaskRecord) -> bool:
        before = await self.read(None, record.id)
        changed = await super().change(record)
        after = await self.read(None, record.id)
        if before is not None and after is not None:
            self._compare(before, after)
        return changed

    async def claim(self, claim: Claim) -> Sequence[TaskRecord]:
        before = {record.id: record for record in await self.page("", None, 10_000)}
        claimed = await super().claim(claim)
        for record in claimed:
            self._compare(before[record.id], record)
            if before[record.id].owner is not None and before[record.id].leased_until >= claim.now:
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
        if after.owner is not None and self.owners.setdefault((task_id, after.epoch), after.owner) != after.owner:
            self.faults.append(f"{task_id} has two owners of one epoch")
