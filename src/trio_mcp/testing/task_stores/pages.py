"""PageTests: records are listed in one order, and are gone when their time is over."""

from __future__ import annotations

from ...stores.task_store import TaskStore
from .storage import NOW, TestedStorage, create, ended, expect_error, interrupt, next_of, record

__all__ = ["PageTests"]


class PageTests(TestedStorage):
    """The tests of `page` and `expire`."""

    async def test_page_is_in_the_order_of_creation(self) -> None:
        """The oldest comes first; records of the same moment are in the order of their ids."""
        async with self.open_store() as store:
            await create(
                store,
                record("d", created_at=NOW + 1),
                record("b", created_at=NOW),
                record("c", created_at=NOW),
                record("\N{SNOWMAN}", created_at=NOW),
                record("A", created_at=NOW),
                record("z", created_at=NOW - 1),
            )
            assert await ids(store, None) == ["z", "A", "b", "c", "\N{SNOWMAN}", "d"]

    async def test_page_has_the_records_of_its_scope_alone(self) -> None:
        """A scope without records has an empty page."""
        async with self.open_store() as store:
            await create(store, record("a"), record("b", scope="bob"), record("n", scope=""))
            assert await store.page("ann", None, 9) == [record("a")]
            assert await store.page("", None, 9) == [record("n", scope="")]
            assert list(await store.page("carol", None, 9)) == []

    async def test_pages_follow_each_other(self) -> None:
        """A page has as many records as were asked for, and the next page begins after the last record."""
        async with self.open_store() as store:
            await create(store, *(record(f"task {number}", created_at=NOW + number // 3) for number in range(8)))
            for most in (0, -1):
                assert await ids(store, None, most) == []
            assert await ids(store, None, 3) == ["task 0", "task 1", "task 2"]
            assert await ids(store, "task 2", 3) == ["task 3", "task 4", "task 5"]
            assert await ids(store, "task 5", 3) == ["task 6", "task 7"]
            assert await ids(store, "task 7", 3) == []

    async def test_paging_is_stable_while_records_come_go_and_change(self) -> None:
        """No record that is there all the time is missed, or comes twice."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, *(record(f"task {number}", created_at=NOW + number) for number in range(6)))
            first = await ids(store, None, 2)
            await create(other, record("early", created_at=NOW - 1), record("late", created_at=NOW + 9))
            assert await other.change(next_of(record("task 0", kept_until=NOW)))
            assert await other.change(ended(record("task 3", created_at=NOW + 3)))
            assert await other.expire(NOW + 1) == 1
            rest = await ids(store, "task 1", 2)
            assert first + rest + await ids(store, rest[-1], 9) == [*(f"task {number}" for number in range(6)), "late"]

    async def test_page_after_an_unknown_record_is_refused(self) -> None:
        """Raises `KeyError` for a record that is gone, of another scope, or was never there."""
        async with self.open_store() as store:
            await create(store, record("a"), record("bobs", scope="bob"), record("gone", kept_until=NOW))
            await store.expire(NOW + 1)
            for after in ("bobs", "gone", "never", "", "\ud800"):
                await expect_error(KeyError, store.page("ann", after, 9))

    async def test_records_are_deleted_after_their_time(self) -> None:
        """The phase does not matter, nor the owner; a record without such a time stays."""
        async with self.open_store() as store, self.open_store() as other:
            past = record("past", kept_until=NOW - 1, owner="one", leased_until=NOW + 9)
            end = ended(record("end", kept_until=NOW - 2))
            present, for_ever = record("present", kept_until=NOW), record("for ever", kept_until=None)
            await create(store, past, end, present, for_ever)
            assert await store.expire(NOW - 2) == 0
            assert await store.expire(NOW) == 2
            assert await store.expire(NOW) == 0
            assert await ids(other, None) == ["for ever", "present"]
            assert await other.read(None, "past") is None

    async def test_latest_time_counts(self) -> None:
        """A change may set another time, later or earlier, or none."""
        async with self.open_store() as store:
            for name, until in (("later", NOW + 9), ("earlier", NOW - 9), ("never", None)):
                await create(store, record(name))
                assert await store.change(next_of(record(name, kept_until=until)))
            assert await store.expire(NOW) == 1
            assert await store.expire(NOW + 120_001) == 1
            assert await ids(store, None) == ["never"]

    async def test_deleted_records_leave_room(self) -> None:
        """A record that is gone counts in no bound."""
        async with self.open_store() as store:
            for turn in range(3):
                await store.create(record(f"task {turn}", kept_until=NOW), most=1, most_of_scope=1)
                assert await store.expire(NOW + 1) == 1

    async def test_cancelled_expire_is_whole_or_nothing(self) -> None:
        """An expire that returned has deleted all, and one that was cancelled none."""
        async with self.open_store() as store:
            step, waits = 1, True
            while waits:
                await create(store, *(record(f"task {step} {number}", kept_until=NOW) for number in range(3)))
                waits, returned = await interrupt(step, store.expire, NOW + 1)
                assert len(await store.page("ann", None, 9)) == (0 if returned else 3)
                await store.expire(NOW + 1)
                step += 1


async def ids(store: TaskStore, after: str | None, most: int = 99) -> list[str]:
    """Return the ids of a page."""
    return [each.id for each in await store.page("ann", after, most)]
