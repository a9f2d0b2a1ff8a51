"""RecordTests: records are kept whole, found by their own scope alone, and changed by one at a time."""

from __future__ import annotations

import trio

from ...stores.task_record import Outcome, TaskPhase
from ...stores.task_store import StoreFull
from .storage import NOW, TestedStorage, create, expect_error, interrupt, next_of, record

__all__ = ["RecordTests"]


class RecordTests(TestedStorage):
    """The tests of `create`, `read` and `change`."""

    async def test_record_is_read_as_it_was_created(self) -> None:
        """Each field comes back, from every store of the storage."""
        whole = record(
            "whole",
            scope="\N{SNOWMAN} ann\0",
            params=bytes(range(256)),
            on_restart="resume",
            is_external=True,
            expires_at=None,
            kept_until=None,
            phase=TaskPhase.INPUT_REQUIRED,
            message="",
            questions={"b": b"2", "a": b"1"},
            answers={"d": b"4", "c": b"3"},
            checkpoint=b"",
            cancel_reason="why \N{SNOWMAN}",
            attempt=3,
            owner="one",
            epoch=7,
            leased_until=NOW + 1,
            version=9,
        )
        end = record("end", phase=TaskPhase.ENDED, outcome=Outcome(b"{}", is_error=True, tells_failure=True))
        async with self.open_store() as store, self.open_store() as other:
            await create(store, whole, end)
            for each in (store, other):
                found = await each.read(whole.scope, "whole")
                assert found is not None
                assert found == whole
                assert list(found.questions) == ["b", "a"]
                assert list(found.answers) == ["d", "c"]
                assert await each.read("ann", "end") == end

    async def test_large_record_is_kept_whole(self) -> None:
        """A store leaves the bounds of a record to its caller."""
        large = record("large", params=bytes(2**20), questions={str(number): bytes(100) for number in range(1000)})
        async with self.open_store() as store:
            await create(store, large)
            assert await store.read("ann", "large") == large

    async def test_unknown_id_is_no_record(self) -> None:
        """A peer may ask for any text, and finds nothing."""
        async with self.open_store() as store:
            await create(store, record("known"))
            for text in ("", "unknown", "KNOWN", "known\0", "%", "*", "\ud800", "x" * 100_000):
                assert await store.read("ann", text) is None
                assert await store.read(None, text) is None

    async def test_record_of_another_scope_does_not_exist(self) -> None:
        """The empty scope is one like others; `None` stands for the server itself, which sees all."""
        async with self.open_store() as store:
            anns, nobodys = record("a"), record("n", scope="")
            await create(store, anns, nobodys)
            assert await store.read("", "a") is None
            assert await store.read("bob", "a") is None
            assert await store.read("ann", "n") is None
            assert await store.read("", "n") == nobodys
            assert await store.read(None, "a") == anns

    async def test_record_with_a_taken_id_is_refused(self) -> None:
        """The record that was first stays, and the other does not count."""
        async with self.open_store() as store:
            await create(store, record("same"))
            await expect_error(ValueError, create(store, record("same", scope="bob")))
            assert await store.read(None, "same") == record("same")
            await store.create(record("bobs", scope="bob"), most=2, most_of_scope=1)

    async def test_full_store_keeps_no_other_record(self) -> None:
        """Raises `StoreFull` with ``most`` records, of one scope or of many."""
        async with self.open_store() as store:
            for name in ("one", "two"):
                await store.create(record(name, scope=name), most=2, most_of_scope=2)
            await expect_error(StoreFull, store.create(record("three", scope="three"), most=2, most_of_scope=2))
            assert await store.read(None, "three") is None
            await store.create(record("three", scope="three"), most=3, most_of_scope=2)

    async def test_full_scope_leaves_room_for_others(self) -> None:
        """Raises `StoreFull` with ``most_of_scope`` records of the scope, and creates records of another."""
        async with self.open_store() as store:
            await store.create(record("anns"), most=9, most_of_scope=1)
            await expect_error(StoreFull, store.create(record("more"), most=9, most_of_scope=1))
            assert await store.read(None, "more") is None
            await store.create(record("bobs", scope="bob"), most=9, most_of_scope=1)

    async def test_bounds_hold_while_many_create(self) -> None:
        """Of twenty that create at the same time, in two stores, as many succeed as there is room for."""
        async with self.open_store() as store, self.open_store() as other:
            created: list[str] = []

            async def try_to_create(number: int) -> None:
                name = f"task {number}"
                try:
                    await (store, other)[number % 2].create(record(name), most=20, most_of_scope=7)
                except StoreFull:
                    return
                created.append(name)

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(try_to_create, number)
            assert len(created) == 7
            assert {each.id for each in await store.page("ann", None, 99)} == set(created)

    async def test_next_version_replaces_the_record(self) -> None:
        """Each field is as in the new version, the lease apart, from every store of the storage."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, record("one", message="old", answers={"a": b"1"}))
            new = next_of(record("one", message="new", poll_ms=5, questions={"b": b"2"}, kept_until=None))
            assert await store.change(new)
            assert await store.read("ann", "one") == new
            assert await other.read("ann", "one") == new

    async def test_change_of_another_version_is_refused(self) -> None:
        """Only the version after the kept one is next."""
        async with self.open_store() as store:
            kept = record("one", version=5)
            await create(store, kept)
            for version in (0, 4, 5, 7):
                assert not await store.change(record("one", version=version, message="late"))
            assert await store.read("ann", "one") == kept

    async def test_change_of_another_epoch_is_refused(self) -> None:
        """A process that has lost the task to a successor changes nothing."""
        async with self.open_store() as store:
            kept = record("one", owner="two", epoch=2)
            await create(store, kept)
            for epoch in (1, 3):
                assert not await store.change(next_of(kept, epoch=epoch, message="late"))
            assert await store.read("ann", "one") == kept

    async def test_change_of_a_record_that_is_gone_is_refused(self) -> None:
        """A change creates no record."""
        async with self.open_store() as store:
            assert not await store.change(record("one", version=0))
            assert not await store.change(record("one", version=1))
            assert await store.read(None, "one") is None

    async def test_first_of_many_changes_wins(self) -> None:
        """Of twenty that change one version at the same time, in two stores, one succeeds."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, record("one"))
            won: list[str] = []

            async def try_to_change(number: int) -> None:
                new = next_of(record("one"), message=f"by {number}")
                if await (store, other)[number % 2].change(new):
                    won.append(f"by {number}")

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(try_to_change, number)
            found = await store.read("ann", "one")
            assert found is not None
            assert [found.message] == won

    async def test_cancelled_create_is_whole_or_nothing(self) -> None:
        """A create that returned has kept the record, and one that was cancelled has not."""
        async with self.open_store() as store:
            step, waits = 1, True
            while waits:
                waits, returned = await interrupt(step, create, store, record(f"task {step}"))
                assert (await store.read("ann", f"task {step}") is not None) == bool(returned)
                step += 1

    async def test_cancelled_change_is_whole_or_nothing(self) -> None:
        """A change that returned has kept the next version, and one that was cancelled has not."""
        async with self.open_store() as store:
            await create(store, record("one"))
            step, waits = 1, True
            while waits:
                before = await store.read("ann", "one")
                assert before is not None
                after = next_of(before, message=f"step {step}")
                waits, returned = await interrupt(step, store.change, after)
                assert await store.read("ann", "one") == (after if returned == [True] else before)
                step += 1
