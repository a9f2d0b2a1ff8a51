"""TaskStoreSuite has all tests of a store of tasks.

Records are listed in one order, and are gone when their time is over. Who watches is told of changes, and holds up
nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from ...stores.task_store import Hint, HintsLost, TaskCursor, TaskRecord, TaskStore
from .task_store_leases import LeaseTests
from .task_store_records import (
    HOUR,
    RecordTests,
    TestedTaskStorage,
    change,
    claim,
    create,
    finished,
    interrupt,
    next_of,
    record,
    wait_past,
)


class PageTests(TestedTaskStorage):
    """The tests of `page` and `expire`."""

    async def test_page_is_in_the_order_of_creation(self) -> None:
        """Records of the same millisecond, too, and of two stores."""
        async with self.open_store() as store, self.open_store() as other:
            names = [f"{99 - number}" for number in range(40)]
            for number, name in enumerate(names):
                await create((store, other)[number % 2], record(name))
            assert await ids(store, None) == names

    async def test_page_has_records_of_its_scope_alone(self) -> None:
        """The empty scope is one like others."""
        async with self.open_store() as store:
            anns = await create(store, record("a"))
            await create(store, record("b", scope="bob"))
            nobodys = await create(store, record("n", scope=""))
            assert list(await store.page("ann", None, 9)) == [anns]
            assert list(await store.page("", None, 9)) == [nobodys]
            assert list(await store.page("carol", None, 9)) == []

    async def test_pages_follow_each_other(self) -> None:
        """A page has as many records as were asked for, and the next page begins behind the position."""
        async with self.open_store() as store:
            at = [cursor_of(await create(store, record(f"task {number}"))) for number in range(8)]
            for most in (0, -1):
                assert await ids(store, None, most) == []
            assert await ids(store, None, 3) == ["task 0", "task 1", "task 2"]
            assert await ids(store, at[2], 3) == ["task 3", "task 4", "task 5"]
            assert await ids(store, at[5], 3) == ["task 6", "task 7"]
            assert await ids(store, at[7], 3) == []

    async def test_paging_is_stable_while_records_come_go_and_change(self) -> None:
        """No record that is there all the time is missed, or comes twice."""
        async with self.open_store() as store, self.open_store() as other:
            created = [await create(store, record(f"task {number}")) for number in range(6)]
            first = await store.page("ann", None, 2)
            await create(other, record("late"))
            assert await other.discard("task 0", retention_ms=HOUR)
            assert await other.change(finished(created[3]), expected_mark=created[3].mark, holder=None)
            rest = await store.page("ann", cursor_of(first[-1]), 2)
            names = [each.id for each in (*first, *rest)] + await ids(store, cursor_of(rest[-1]))
            assert names == [*(f"task {number}" for number in range(6)), "late"]

    async def test_position_is_good_when_its_record_is_gone(self) -> None:
        """Nor does it matter whose the record was, or whether there was one."""
        async with self.open_store() as store:
            created = [await create(store, record(f"task {number}")) for number in range(3)]
            gone = cursor_of(created[1])
            assert await store.discard("task 1", retention_ms=HOUR)
            assert await ids(store, gone) == ["task 2"]
            assert await ids(store, (0, "")) == ["task 0", "task 2"]
            assert await ids(store, (2**62, "\ud800")) == []

    async def test_records_are_deleted_after_their_time(self) -> None:
        """The phase does not matter, nor the holder; a record without such a time stays."""
        async with self.open_store() as store, self.open_store() as other:
            past = await create(store, record("past", holder="one"), ttl_ms=1, retention_ms=0)
            end = await create(store, record("end"), ttl_ms=0, retention_ms=1)
            assert await store.change(finished(end), expected_mark=end.mark, holder=None)
            await create(store, record("present"))
            await create(store, record("for ever"), ttl_ms=None)
            await wait_past(store, past, max(past.kept_until or 0, end.kept_until or 0))
            assert await store.expire(limit=9) == 2
            assert await store.expire(limit=9) == 0
            assert await ids(other, None) == ["present", "for ever"]
            assert await other.read(None, "past") is None

    async def test_expire_deletes_no_more_than_it_is_asked_for(self) -> None:
        """The others are there for the next."""
        async with self.open_store() as store:
            created = [await create(store, record(f"task {number}"), ttl_ms=1, retention_ms=0) for number in range(5)]
            await wait_past(store, created[-1], created[-1].kept_until or 0)
            assert [await store.expire(limit=most) for most in (0, 2, 2, 2, 2)] == [0, 2, 2, 1, 0]

    async def test_record_that_may_be_deleted_is_not_listed(self) -> None:
        """Also before it is deleted."""
        async with self.open_store() as store:
            past = await create(store, record("past"), ttl_ms=1, retention_ms=0)
            await create(store, record("present"))
            await wait_past(store, past, past.kept_until or 0)
            assert await ids(store, None, 1) == ["present"]

    async def test_latest_time_counts(self) -> None:
        """A change may set another time, later or earlier, or none."""
        async with self.open_store() as store:
            for name in ("later", "earlier", "never"):
                one = await create(store, record(name), ttl_ms=1 if name == "later" else HOUR, retention_ms=0)
                until = {"later": one.created_at + HOUR, "earlier": one.created_at + 1, "never": None}[name]
                assert await change(store, one, kept_until=until) is not None
            await wait_past(store, one, one.created_at + 1)
            assert await store.expire(limit=9) == 1
            assert await ids(store, None) == ["later", "never"]

    async def test_deleted_records_leave_room(self) -> None:
        """A record that is gone counts in no bound."""
        async with self.open_store() as store:
            for turn in range(3):
                one = await create(store, record(f"task {turn}"), ttl_ms=0, retention_ms=0, limit=1, scope_limit=1)
                await wait_past(store, one, one.created_at)
                assert await store.expire(limit=9) == 1

    async def test_cancelled_expire_is_whole_or_nothing(self) -> None:
        """An expire that returned has deleted all, and one that was cancelled none."""
        async with self.open_store() as store:
            step, waits = 1, True

            async def expire() -> int:
                return await store.expire(limit=9)

            while waits:
                for number in range(3):
                    one = await create(store, record(f"task {step} {number}", scope=str(step)))
                    one_more = next_of(one, kept_until=one.created_at)
                    await wait_past(store, one, one.created_at)
                    assert await store.change(one_more, expected_mark=one.mark, holder=None)
                waits, returned = await interrupt(step, expire)
                left = [await store.read(None, f"task {step} {number}") for number in range(3)]
                assert [each is None for each in left] == [bool(returned)] * 3
                await store.expire(limit=9)
                step += 1


def cursor_of(record: TaskRecord) -> TaskCursor:
    """Return the position of a record."""
    return record.position, record.id


async def ids(store: TaskStore, after: TaskCursor | None, limit: int = 99) -> list[str]:
    """Return the ids of a page."""
    return [each.id for each in await store.page("ann", after, limit)]


_PATIENCE = 60.0
"""Seconds after which a hint is taken never to come."""


class HintTests(TestedTaskStorage):
    """The tests of `watch`."""

    async def test_watcher_is_told_of_each_kind_of_change(self) -> None:
        """A record that is created, changed, claimed or deleted gives a hint."""
        async with self.open_store() as store:
            await _expect_all_hints(store, store)

    async def test_watcher_is_told_of_changes_in_other_stores(self) -> None:
        """Another store of the same storage stands for another process."""
        async with self.open_store() as store, self.open_store() as other:
            await _expect_all_hints(store, other)

    async def test_watcher_is_not_told_of_the_past(self) -> None:
        """The first hint is of a change after the stream was opened."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, record("before"))
            await create(other, record("before, elsewhere"))
            async with store.watch() as hints:
                await create(other, record("after"))
                with trio.fail_after(_PATIENCE):
                    assert await anext(hints) == "after"

    async def test_all_watchers_are_told(self) -> None:
        """A watcher that leaves takes no hint from another."""
        async with self.open_store() as store, store.watch() as hints:
            async with store.watch() as others:
                await create(store, record("one"))
                await expect_hint(others, "one")
                await expect_hint(hints, "one")
            await create(store, record("two"))
            await expect_hint(hints, "two")

    async def test_watcher_that_does_not_read_holds_up_nobody(self) -> None:
        """Hints that nobody reads are lost in the end, which a gap tells; later hints are not."""
        async with self.open_store() as store, store.watch() as hints:
            one = await create(store, record("one"))
            with trio.fail_after(_PATIENCE):
                for _ in range(1500):
                    changed = await change(store, one)
                    assert changed is not None
                    one = changed
                gaps, is_over = 0, False
                while not is_over:
                    # Without a gap so far, a busy machine may just be slow.
                    with trio.move_on_after(0.1 if gaps else 2.0) as scope:
                        gaps += isinstance(await anext(hints), HintsLost)
                    is_over = scope.cancelled_caught
                assert gaps > 0
            await create(store, record("two"))
            await expect_hint(hints, "two")

    async def test_waiting_for_a_hint_can_be_cancelled(self) -> None:
        """The stream goes on afterwards."""
        async with self.open_store() as store, store.watch() as hints:
            with trio.move_on_after(0.01) as scope:
                await anext(hints)
            assert scope.cancelled_caught
            await create(store, record("one"))
            await expect_hint(hints, "one")


async def _expect_all_hints(store: TaskStore, other: TaskStore) -> None:
    old = await create(store, record("old", is_external=True), ttl_ms=1, retention_ms=0)
    gone = await create(store, record("gone", is_external=True))
    await wait_past(store, gone, old.kept_until or 0)
    async with store.watch() as hints:
        one = await create(other, record("new"))
        await expect_hint(hints, "new")
        await change(other, one)
        await expect_hint(hints, "new")
        await claim(other, "me")
        await expect_hint(hints, "new")
        await other.expire(limit=9)
        await expect_hint(hints, "old")
        await other.discard("gone", retention_ms=HOUR)
        await expect_hint(hints, "gone")


async def expect_hint(hints: AsyncIterator[Hint], task_id: str) -> None:
    """Wait for a hint of the task."""
    with trio.fail_after(_PATIENCE):
        async for hint in hints:
            if hint == task_id:
                return
    raise AssertionError("the stream of hints has ended")


class TaskStoreSuite(RecordTests, PageTests, LeaseTests, HintTests):
    """The tests that every `TaskStore` has to pass, for each sentence of its docstrings.

    A test class inherits the tests, and opens the store; pytest needs ``pytest-trio`` and ``trio_mode = true``::

        class TestMyStore(TaskStoreSuite):
            @pytest.fixture(autouse=True)
            def storage(self, tmp_path):
                self.path = tmp_path / "tasks"

            def open_store(self):
                return MyStore(self.path)

    Real time passes in some tests: the clock of trio may not jump.
    """
