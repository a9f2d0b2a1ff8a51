"""The suite for stores of tasks notices what it is there for: each defect of a store fails a test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from trio_mcp import Claim, MemoryTaskStore, StoreFull, TaskRecord, TaskStore
from trio_mcp.testing import TaskStoreSuite
from trio_mcp.testing.task_stores import hints


class TellsAll(MemoryTaskStore):
    async def read(self, scope: str | None, task_id: str) -> TaskRecord | None:
        return await super().read(None, task_id)


class TakesAll(MemoryTaskStore):
    async def create(self, record: TaskRecord, *, most: int, most_of_scope: int) -> None:
        await super().create(record, most=most, most_of_scope=most)


class CountsFirst(MemoryTaskStore):
    async def create(self, record: TaskRecord, *, most: int, most_of_scope: int) -> None:
        if len(await self.page(record.scope, None, most)) >= most_of_scope:
            raise StoreFull
        await trio.lowlevel.checkpoint()
        await super().create(record, most=most, most_of_scope=most)


class ForgetsEpochs(MemoryTaskStore):
    async def change(self, record: TaskRecord) -> bool:
        kept = await self.read(None, record.id)
        return await super().change(attrs.evolve(record, epoch=kept.epoch) if kept else record)


class ComparesFirst(MemoryTaskStore):
    async def change(self, record: TaskRecord) -> bool:
        kept = await self.read(None, record.id)
        if kept is None or kept.version + 1 != record.version or kept.epoch != record.epoch:
            return False
        await trio.lowlevel.checkpoint()
        self._records[record.id] = record
        return True


class LetsGoOfLeases(MemoryTaskStore):
    async def change(self, record: TaskRecord) -> bool:
        changed = await super().change(record)
        if changed and record.owner is not None:
            self._records[record.id] = record
        return changed


class ClaimsAll(MemoryTaskStore):
    async def claim(self, claim: Claim) -> Any:
        return await super().claim(attrs.evolve(claim, most=1000))


class ClaimsTheLiving(MemoryTaskStore):
    async def claim(self, claim: Claim) -> Any:
        return await super().claim(attrs.evolve(claim, now=claim.now + 1))


class LosesNothing(MemoryTaskStore):
    async def renew(self, owner: str, task_ids: Collection[str], leased_until: int) -> set[str]:
        await super().renew(owner, task_ids, leased_until)
        return set()


class DeletesEarly(MemoryTaskStore):
    async def expire(self, now: int) -> int:
        return await super().expire(now + 1)


class StartsAnew(MemoryTaskStore):
    async def page(self, scope: str, after: str | None, most: int) -> Any:
        try:
            return await super().page(scope, after, most)
        except KeyError:
            return await super().page(scope, None, most)


class GivesUpHalfway(MemoryTaskStore):
    async def create(self, record: TaskRecord, *, most: int, most_of_scope: int) -> None:
        await super().create(record, most=most, most_of_scope=most_of_scope)
        await trio.lowlevel.checkpoint()


class SaysNothing(MemoryTaskStore):
    async def expire(self, now: int) -> int:
        watchers, self._watchers = self._watchers, type(self._watchers)()
        try:
            return await super().expire(now)
        finally:
            self._watchers = watchers


DEFECTS: dict[Callable[[], MemoryTaskStore], str] = {
    TellsAll: "test_record_of_another_scope_does_not_exist",
    TakesAll: "test_full_scope_leaves_room_for_others",
    CountsFirst: "test_bounds_hold_while_many_create",
    ForgetsEpochs: "test_former_owner_changes_nothing",
    ComparesFirst: "test_first_of_many_changes_wins",
    LetsGoOfLeases: "test_change_leaves_the_lease_as_it_is_kept",
    ClaimsAll: "test_claim_takes_no_more_than_it_asks_for",
    ClaimsTheLiving: "test_task_is_claimed_when_its_lease_is_over",
    LosesNothing: "test_renewal_tells_which_tasks_are_lost",
    DeletesEarly: "test_records_are_deleted_after_their_time",
    StartsAnew: "test_page_after_an_unknown_record_is_refused",
    GivesUpHalfway: "test_cancelled_create_is_whole_or_nothing",
    SaysNothing: "test_watcher_is_told_of_each_kind_of_change",
}


def suite_of(make: Callable[[], TaskStore]) -> TaskStoreSuite:
    class Suite(TaskStoreSuite):
        store = make()

        @asynccontextmanager
        async def open_store(self) -> AsyncGenerator[TaskStore]:
            yield self.store

    return Suite()


@pytest.mark.parametrize(("make", "test"), DEFECTS.items(), ids=[make.__name__ for make in DEFECTS])
def test_a_defect_of_a_store_fails_the_test_of_that_sentence(
    make: Callable[[], TaskStore], test: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hints, "_PATIENCE", 0.1)
    trio.run(getattr(suite_of(MemoryTaskStore), test))
    with pytest.raises((AssertionError, trio.TooSlowError, BaseExceptionGroup)):
        trio.run(getattr(suite_of(make), test))


async def test_who_forgets_to_open_a_store_is_told():
    with pytest.raises(NotImplementedError, match=r"defines open_store\(\)"):
        await TaskStoreSuite().test_unknown_id_is_no_record()
