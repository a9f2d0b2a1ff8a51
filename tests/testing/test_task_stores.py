"""The test suite for task stores detects each deliberate defect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from trio_mcp.stores import MemoryTaskStore, StoreFull, TaskRecord, TaskStore
from trio_mcp.stores.task_store import HINTS_LOST
from trio_mcp.testing import TaskStoreSuite


class ReadsAnyScope(MemoryTaskStore):
    async def read(self, scope: str | None, task_id: str) -> Any:
        return await super().read(None, task_id)


class IgnoresScopeLimit(MemoryTaskStore):
    async def create(self, new: TaskRecord, **options: Any) -> TaskRecord:
        return await super().create(new, **options | {"scope_limit": options["limit"]})


class ChecksScopeLimitBeforeCheckpoint(MemoryTaskStore):
    async def create(self, new: TaskRecord, **options: Any) -> TaskRecord:
        if len(await self.page(new.scope, None, options["limit"])) >= options["scope_limit"]:
            raise StoreFull
        await trio.lowlevel.checkpoint()
        return await super().create(new, **options | {"scope_limit": options["limit"]})


class StoresCreationTimeOfCaller(MemoryTaskStore):
    async def create(self, new: TaskRecord, **options: Any) -> TaskRecord:
        record = await super().create(new, **options)
        self._records[record.id] = attrs.evolve(record, created_at=new.created_at)
        return self._records[record.id]


class UsesCreationTimeAsPosition(MemoryTaskStore):
    async def create(self, new: TaskRecord, **options: Any) -> TaskRecord:
        record = await super().create(new, **options)
        order = self._order[record.scope]
        order.remove((record.position, record.id))
        self._records[record.id] = attrs.evolve(record, position=record.created_at)
        order.append((record.created_at, record.id))
        order.sort()
        return self._records[record.id]


class ForgetsDiscardedIds(MemoryTaskStore):
    async def discard(self, task_id: str, *, retention_ms: int) -> bool:
        return await super().discard(task_id, retention_ms=0)


class ComparesVersionsInsteadOfMarks(MemoryTaskStore):
    async def change(self, record: TaskRecord, **options: Any) -> bool:
        kept = self._records.get(record.id)
        is_next = kept is not None and kept.version + 1 == record.version
        return await super().change(record, **options | ({"expected_mark": kept.mark} if kept and is_next else {}))


class IgnoresHolderOnChange(MemoryTaskStore):
    async def change(self, record: TaskRecord, **options: Any) -> bool:
        return await super().change(record, **options | {"holder": None})


class ComparesMarkBeforeCheckpoint(MemoryTaskStore):
    async def change(
        self, record: TaskRecord, *, expected_mark: bytes, holder: str | None, give_up: bool = False
    ) -> bool:
        kept = self._records.get(record.id)
        if kept is None or kept.mark != expected_mark:
            return False
        await trio.lowlevel.checkpoint()
        self._records[record.id] = record
        return True


class StoresLeaseOfCaller(MemoryTaskStore):
    async def change(self, record: TaskRecord, **options: Any) -> bool:
        changed = await super().change(record, **options)
        if changed and not options.get("give_up"):
            self._records[record.id] = record
        return changed


class KeepsHolderOfEndedTask(MemoryTaskStore):
    async def change(self, record: TaskRecord, **options: Any) -> bool:
        before = self._find(record.id)
        changed = await super().change(record, **options)
        if changed and before is not None:
            after = self._records[record.id]
            self._records[record.id] = attrs.evolve(after, holder=before.holder, leased_until=before.leased_until)
        return changed


class IgnoresClaimLimit(MemoryTaskStore):
    async def claim(self, holder: str, **options: Any) -> Any:
        return await super().claim(holder, **options | {"limit": 1000})


class ClaimsTasksOfOtherTools(MemoryTaskStore):
    async def claim(self, holder: str, **options: Any) -> Any:
        return await super().claim(holder, **options | {"names": {each.name for each in self._records.values()}})


class ClaimsBeforeLeaseExpires(MemoryTaskStore):
    async def claim(self, holder: str, **options: Any) -> Any:
        clock, self._now = self._now, lambda: clock() + 1  # type: ignore[assignment]
        try:
            return await super().claim(holder, **options)
        finally:
            self._now = clock


class ReturnsNoLostTasks(MemoryTaskStore):
    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Any:
        await super().renew(held, lease_ms=lease_ms)
        return ()


class RenewsForAnyHolder(MemoryTaskStore):
    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Any:
        return await super().renew({name: self._records[name].holder or "" for name in held}, lease_ms=lease_ms)


class DeletesTooEarly(MemoryTaskStore):
    async def expire(self, *, limit: int) -> int:
        clock, self._now = self._now, lambda: clock() + 8_000_000  # type: ignore[assignment]
        try:
            return await super().expire(limit=limit)
        finally:
            self._now = clock


class RestartsPagesIfCursorIsDeleted(MemoryTaskStore):
    async def page(self, scope: str, cursor: Any, limit: int) -> Any:
        is_there = cursor is not None and cursor[1] in self._records
        return await super().page(scope, cursor if is_there else None, limit)


class ListsExpiredRecords(MemoryTaskStore):
    async def page(self, scope: str, cursor: Any, limit: int) -> Any:
        clock, self._now = self._now, lambda: 0  # type: ignore[assignment]
        try:
            return await super().page(scope, cursor, limit)
        finally:
            self._now = clock


class CreatesBeforeCheckpoint(MemoryTaskStore):
    async def create(self, new: TaskRecord, **options: Any) -> TaskRecord:
        record = await super().create(new, **options)
        await trio.lowlevel.checkpoint()
        return record


class SendsNoHintsOnExpiry(MemoryTaskStore):
    async def expire(self, *, limit: int) -> int:
        watchers, self._hint_queues = self._hint_queues, type(self._hint_queues)()
        try:
            return await super().expire(limit=limit)
        finally:
            self._hint_queues = watchers


class HidesLostHints(MemoryTaskStore):
    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[Any]:
        async with super().watch() as hints:
            yield (hint async for hint in hints if hint is not HINTS_LOST)


DEFECTS: dict[Callable[[], MemoryTaskStore], str] = {
    ReadsAnyScope: "test_read_finds_a_task_record_only_in_its_own_scope",
    IgnoresScopeLimit: "test_create_raises_store_full_only_in_the_scope_that_is_full",
    ChecksScopeLimitBeforeCheckpoint: "test_concurrent_create_calls_respect_the_limits_of_the_task_store",
    StoresCreationTimeOfCaller: "test_task_store_converts_durations_to_times_on_its_own_clock",
    UsesCreationTimeAsPosition: "test_page_lists_task_records_in_the_order_of_creation",
    ForgetsDiscardedIds: "test_discard_of_an_unknown_task_id_blocks_its_creation_for_a_while",
    ComparesVersionsInsteadOfMarks: "test_change_of_a_task_record_with_a_wrong_expected_mark_is_refused",
    IgnoresHolderOnChange: "test_change_of_a_task_record_by_another_holder_is_refused",
    ComparesMarkBeforeCheckpoint: "test_only_one_of_many_concurrent_changes_of_a_task_record_succeeds",
    StoresLeaseOfCaller: "test_change_ignores_holder_epoch_and_lease_of_the_given_task_record",
    KeepsHolderOfEndedTask: "test_task_that_ends_or_becomes_external_has_no_holder",
    IgnoresClaimLimit: "test_claim_returns_at_most_limit_tasks_longest_waiting_first",
    ClaimsTasksOfOtherTools: "test_claim_returns_only_tasks_of_the_given_tools",
    ClaimsBeforeLeaseExpires: "test_task_cannot_be_claimed_in_the_last_millisecond_of_its_lease",
    ReturnsNoLostTasks: "test_renew_returns_the_tasks_that_the_process_no_longer_holds",
    RenewsForAnyHolder: "test_renew_checks_the_holder_of_each_task_separately",
    DeletesTooEarly: "test_expire_deletes_task_records_whose_deletion_time_has_passed",
    RestartsPagesIfCursorIsDeleted: "test_page_cursor_stays_valid_after_its_task_record_is_deleted",
    ListsExpiredRecords: "test_page_omits_task_records_whose_deletion_time_has_passed",
    CreatesBeforeCheckpoint: "test_cancelled_create_of_a_task_record_is_atomic",
    SendsNoHintsOnExpiry: "test_task_store_watcher_is_notified_of_each_kind_of_change",
    HidesLostHints: "test_slow_task_store_watcher_does_not_block_writers",
}


def suite_of(make: Callable[[], TaskStore]) -> TaskStoreSuite:
    class Suite(TaskStoreSuite):
        store = make()

        @asynccontextmanager
        async def open_store(self) -> AsyncGenerator[TaskStore]:
            yield self.store

    return Suite()


@pytest.mark.parametrize(("make", "test"), DEFECTS.items(), ids=[make.__name__ for make in DEFECTS])
def test_task_store_with_a_defect_fails_the_suite_test_for_that_defect(make: Callable[[], TaskStore], test: str):
    trio.run(getattr(suite_of(MemoryTaskStore), test))
    clock = (
        MockClock(autojump_threshold=0) if make in (SendsNoHintsOnExpiry, HidesLostHints) else None
    )  # waited for in vain
    with pytest.raises((AssertionError, trio.TooSlowError, BaseExceptionGroup)):
        trio.run(getattr(suite_of(make), test), clock=clock)


async def test_task_store_suite_without_open_store_raises_not_implemented():
    with pytest.raises(NotImplementedError, match=r"must define open_store\(\)"):
        await TaskStoreSuite().test_read_returns_none_for_an_unknown_task_id_whatever_the_string()
