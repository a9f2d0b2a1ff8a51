"""RecordTests: records are kept whole, found by their own scope alone, and changed by one at a time.

`TestedStorage` opens the store under test; what stands beside it is used by all groups of tests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any, Final, TypeVar

import attrs
import trio

from ...classes import define
from ...stores.task_store import Outcome, StoredTask, StoreFull, TaskPhase, TaskRecord, TaskStore, new_mark

HOUR: Final = 3_600_000
"""Milliseconds that do not pass in a test."""

T = TypeVar("T")


class TestedTaskStorage:
    """The storage under test: empty when a test begins."""

    def open_store(self) -> AbstractAsyncContextManager[TaskStore]:
        """Open a store; each store that one test opens keeps its records in the same storage."""
        raise NotImplementedError("the test class that inherits the suite defines open_store()")


def record(task_id: str, **changes: Any) -> TaskRecord:
    """Return a new record, as a caller of `TaskStore.create` makes it, that is as usual but for ``changes``."""
    usual = TaskRecord(
        id=task_id,
        scope="ann",
        method="tools/call",
        name="report",
        params=b'{"name":"report"}',
        revision="2025-11-25",
        capabilities=b"{}",
        poll_ms=1000,
        mark=new_mark(),
    )
    return attrs.evolve(usual, **changes)


async def create(store: TaskStore, new: TaskRecord, **changes: Any) -> TaskRecord:
    """Create a record, for an hour and without a bound that matters but for ``changes``."""
    times = dict.fromkeys(("lease_ms", "ttl_ms", "retention_ms"), HOUR)
    return await store.create(new, **{**times, "limit": 1_000_000, "scope_limit": 1_000_000, **changes})


def next_of(record: TaskRecord, **changes: Any) -> TaskRecord:
    """Return the next version of ``record``, under another mark."""
    return attrs.evolve(record, version=record.version + 1, mark=new_mark(), **changes)


def finished(record: TaskRecord) -> TaskRecord:
    """Return the next version, in which the task has ended."""
    return next_of(record, phase=TaskPhase.ENDED, outcome=Outcome(b"{}"), holder=None, leased_until=0)


async def change(
    store: TaskStore, record: TaskRecord, *, holder: str | None = None, give_up: bool = False, **changes: Any
) -> TaskRecord | None:
    """Change ``record`` as it is kept, by ``holder`` or by anybody. Return the next one; `None` where the store
    refuses."""
    following = next_of(record, **changes)
    is_kept = await store.change(following, expected_mark=record.mark, holder=holder, give_up=give_up)
    return following if is_kept else None


async def claim(
    store: TaskStore, holder: str, *, lease_ms: int = HOUR, limit: int = 1000, names: Collection[str] = ("report",)
) -> dict[str, TaskRecord]:
    """Claim tasks for ``holder``, and return their records by the ids."""
    return {each.id: each for each in await store.claim(holder, lease_ms=lease_ms, limit=limit, names=names)}


async def read_stored(store: TaskStore, task_id: str) -> StoredTask:
    """Return the record as it is kept, and the store's present."""
    found = await store.read(None, task_id)
    assert found is not None, f"{task_id} is not kept"
    return found


async def read_record(store: TaskStore, task_id: str) -> TaskRecord:
    """Return the record as it is kept."""
    return (await read_stored(store, task_id)).record


async def wait_past(store: TaskStore, record: TaskRecord, moment: int) -> None:
    """Wait until a ``moment`` is over, by the clock of the store, which keeps ``record``."""
    while (await read_stored(store, record.id)).now <= moment:  # noqa: ASYNC110 - the clock is of the store
        await trio.sleep(0.001)


async def expect_error(error: type[Exception], call: Awaitable[object]) -> None:
    """Fail unless ``call`` raises ``error``."""
    try:
        result = await call
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected, and {result!r} came")


@define(eq=False)
class Interruption:
    """Cancels calls when their task waits for the ``step``-th time. ``has_waited`` says whether any waited so often."""

    step: int
    has_waited: bool = False

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> list[T]:
        """Call ``function`` with ``args``, and return its result, if there was one."""

        class Cancelling(trio.abc.Instrument):
            left = self.step

            def after_task_step(self, task: trio.lowlevel.Task) -> None:
                self.left -= task is caller
                if self.left == 0:
                    scope.cancel(reason="the test")

        caller, cancelling, results = trio.lowlevel.current_task(), Cancelling(), list[T]()
        with trio.CancelScope() as scope:
            trio.lowlevel.add_instrument(cancelling)
            try:
                results.append(await function(*args))
            finally:
                trio.lowlevel.remove_instrument(cancelling)
        self.has_waited |= scope.cancel_called
        return results


def interruptions() -> Iterator[Interruption]:
    """Yield an `Interruption` for each step, up to the first one that no call reached."""
    for step in count(1):
        yield (interruption := Interruption(step))
        if not interruption.has_waited:
            return


class RecordTests(TestedTaskStorage):
    """The tests of `create`, `void`, `read`, `marks` and `change`."""

    async def test_record_is_read_as_it_was_created(self) -> None:
        """Each field comes back, from every store of the storage."""
        whole = record(
            "whole",
            scope="\N{SNOWMAN} ann\0",
            params=bytes(range(256)),
            on_restart="resume",
            phase=TaskPhase.INPUT_REQUIRED,
            message="",
            questions={"b": b"2", "a": b"1"},
            answers={"d": b"4", "c": b"3"},
            checkpoint=b"",
            cancel_reason="why \N{SNOWMAN}",
            attempt=3,
            holder="one",
            epoch=7,
            version=9,
        )
        end = record("end", phase=TaskPhase.ENDED, outcome=Outcome(b"{}", is_error=True, tells_failure=True))
        external = record("external", is_external=True)
        async with self.open_store() as store, self.open_store() as other:
            created = [await create(store, each) for each in (whole, end, external)]
            for each in (store, other):
                assert [await read_record(each, one.id) for one in created] == created
                again = await read_record(each, "whole")
                assert list(again.questions) == ["b", "a"]
                assert list(again.answers) == ["d", "c"]
            filled = ("created_at", "position", "updated_at", "expires_at", "kept_until", "leased_until")
            for old, new in zip((whole, end, external), created, strict=True):
                times = {name: getattr(new, name) for name in filled}
                assert attrs.evolve(old, **times) == new

    async def test_store_fills_in_the_times(self) -> None:
        """Lengths of time become times of the store's clock, which goes on."""
        async with self.open_store() as store:
            one = await create(store, record("one", holder="me"), lease_ms=1000, ttl_ms=2000, retention_ms=3000)
            begun = one.created_at
            assert (one.updated_at, one.expires_at, one.kept_until) == (begun, begun + 2000, begun + 5000)
            assert one.leased_until == begun + 1000
            now = (await read_stored(store, "one")).now
            assert begun <= now < begun + HOUR
            await wait_past(store, one, now)

    async def test_task_without_a_time_to_live_is_for_ever(self) -> None:
        """There is neither an end nor a deletion."""
        async with self.open_store() as store:
            one = await create(store, record("one"), ttl_ms=None, retention_ms=5)
            assert (one.expires_at, one.kept_until) == (None, None)

    async def test_task_without_a_holder_has_no_lease(self) -> None:
        """The lease is told by 0."""
        async with self.open_store() as store:
            assert (await create(store, record("one"))).leased_until == 0

    async def test_large_record_is_kept_whole(self) -> None:
        """A store leaves the bounds of a record to its caller."""
        large = record("large", params=bytes(2**20), questions={str(number): bytes(100) for number in range(1000)})
        async with self.open_store() as store:
            assert await read_record(store, (await create(store, large)).id) == await read_record(store, "large")
            assert (await read_record(store, "large")).size == large.size

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
            anns, nobodys = await create(store, record("a")), await create(store, record("n", scope=""))
            assert await store.read("", "a") is None
            assert await store.read("bob", "a") is None
            assert await store.read("ann", "n") is None
            for scope, one in (("", nobodys), (None, anns), ("ann", anns)):
                read = await store.read(scope, one.id)
                assert read is not None
                assert read.record == one

    async def test_record_with_a_taken_id_is_refused(self) -> None:
        """The record that was first stays, and the other does not count."""
        async with self.open_store() as store:
            one = await create(store, record("same"))
            await expect_error(ValueError, create(store, record("same", scope="bob")))
            assert await read_record(store, "same") == one
            await create(store, record("bobs", scope="bob"), limit=2, scope_limit=1)

    async def test_full_store_keeps_no_other_record(self) -> None:
        """Raises `StoreFull` with ``most`` records, of one scope or of many."""
        async with self.open_store() as store:
            for name in ("one", "two"):
                await create(store, record(name, scope=name), limit=2, scope_limit=2)
            await expect_error(StoreFull, create(store, record("three", scope="three"), limit=2, scope_limit=2))
            assert await store.read(None, "three") is None
            await create(store, record("three", scope="three"), limit=3, scope_limit=2)

    async def test_full_scope_leaves_room_for_others(self) -> None:
        """Raises `StoreFull` with ``most_of_scope`` records of the scope, and creates records of another."""
        async with self.open_store() as store:
            await create(store, record("anns"), limit=9, scope_limit=1)
            await expect_error(StoreFull, create(store, record("more"), limit=9, scope_limit=1))
            assert await store.read(None, "more") is None
            await create(store, record("bobs", scope="bob"), limit=9, scope_limit=1)

    async def test_bounds_hold_while_many_create(self) -> None:
        """Of twenty that create at the same time, in two stores, as many succeed as there is room for."""
        async with self.open_store() as store, self.open_store() as other:
            created: list[str] = []

            async def try_to_create(number: int) -> None:
                name = f"task {number}"
                try:
                    await create((store, other)[number % 2], record(name), limit=20, scope_limit=7)
                except StoreFull:
                    return
                created.append(name)

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(try_to_create, number)
            assert len(created) == 7
            assert {each.id for each in await store.page("ann", None, 99)} == set(created)

    async def test_void_deletes_a_record(self) -> None:
        """It returns true, and the record leaves room."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, record("one", holder="me"))
            assert await other.discard("one", retention_ms=HOUR) is True
            assert await store.read(None, "one") is None
            assert await claim(store, "you") == {}
            await create(store, record("two"), limit=1, scope_limit=1)

    async def test_void_refuses_a_creation_that_is_still_under_way(self) -> None:
        """It returns false, and the id is refused for a while; others are not."""
        async with self.open_store() as store, self.open_store() as other:
            assert await store.discard("late", retention_ms=HOUR) is False
            assert await store.discard("late", retention_ms=HOUR) is False
            await expect_error(ValueError, create(other, record("late")))
            assert await store.read(None, "late") is None
            one = await create(other, record("one"))
            assert await store.discard("soon", retention_ms=1) is False
            await wait_past(store, one, (await read_stored(store, "one")).now + 1)
            await create(store, record("soon"))

    async def test_marks_are_those_of_the_records_that_are_kept(self) -> None:
        """They come from every store of the storage, and change with each write."""
        async with self.open_store() as store, self.open_store() as other:
            one, two = await create(store, record("one")), await create(store, record("two", scope="bob"))
            assert dict(await other.marks(["one", "two", "never", "\ud800"])) == {"one": one.mark, "two": two.mark}
            changed = await change(store, one, message="new")
            assert changed is not None
            assert dict(await other.marks(["one"])) == {"one": changed.mark}
            assert dict(await store.marks([])) == {}

    async def test_marks_of_thousands_are_told(self) -> None:
        """There is no bound on how many are asked for."""
        async with self.open_store() as store:
            created = [await create(store, record(f"task {number}")) for number in range(40)]
            asked = [*(each.id for each in created), *(f"never {number}" for number in range(40_000))]
            assert dict(await store.marks(asked)) == {each.id: each.mark for each in created}

    async def test_change_replaces_the_record(self) -> None:
        """Each field is as in the new record, from every store of the storage."""
        async with self.open_store() as store, self.open_store() as other:
            one = await create(store, record("one", message="old", answers={"a": b"1"}))
            new = await change(store, one, message="new", poll_ms=5, questions={"b": b"2"}, kept_until=None)
            assert new is not None
            assert await read_record(store, "one") == new
            assert await read_record(other, "one") == new

    async def test_change_of_a_record_with_another_mark_is_refused(self) -> None:
        """Equal numbers decide nothing: the mark alone does."""
        async with self.open_store() as store:
            one = await create(store, record("one"))
            new = await change(store, one, message="new")
            assert new is not None
            for was in (one.mark, b"", new_mark()):
                assert not await store.change(next_of(new, message="late"), expected_mark=was, holder=None)
                assert not await store.change(attrs.evolve(new, mark=new_mark()), expected_mark=was, holder=None)
            assert await read_record(store, "one") == new

    async def test_change_of_an_unknown_record_is_refused(self) -> None:
        """A change creates nothing."""
        async with self.open_store() as store:
            one = record("one")
            assert not await store.change(next_of(one), expected_mark=one.mark, holder=None)
            assert await store.read(None, "one") is None

    async def test_change_by_the_holder_is_kept(self) -> None:
        """The one that the claim or the creation has named."""
        async with self.open_store() as store:
            one = await create(store, record("one", holder="me"))
            new = await change(store, one, holder="me", message="new")
            assert new is not None
            assert await read_record(store, "one") == new

    async def test_change_by_another_holder_is_refused(self) -> None:
        """A process that has lost the task to a successor changes nothing, whatever it has read; anybody may, who
        names no holder."""
        async with self.open_store() as store:
            await create(store, record("one"))
            new = (await claim(store, "quick"))["one"]
            for holder in ("slow", "", "QUICK"):
                assert await change(store, new, holder=holder) is None
                assert not await store.change(finished(new), expected_mark=new.mark, holder=holder)
            assert await read_record(store, "one") == new
            assert await change(store, new, message="an answer") is not None

    async def test_holder_changes_nothing_of_a_task_that_has_ended(self) -> None:
        """The end of a cancelled task stays: its handler has no say any more."""
        async with self.open_store() as store:
            one = await create(store, record("one", holder="me"))
            cancelled = await change(store, one, phase=TaskPhase.CANCELLED)
            assert cancelled is not None
            assert await change(store, cancelled, holder="me", message="but I") is None

    async def test_change_leaves_the_lease_as_it_is_kept(self) -> None:
        """Whoever changes a task may know an earlier holder and lease, or none."""
        async with self.open_store() as store:
            await create(store, record("one"))
            one = before = (await claim(store, "me"))["one"]
            for lease in ({"holder": None, "leased_until": 0}, {"holder": "you", "leased_until": 1, "epoch": 9}):
                following = next_of(one, **lease)
                assert await store.change(following, expected_mark=one.mark, holder=None)
                one = await read_record(store, "one")
                assert (one.holder, one.epoch, one.leased_until) == ("me", before.epoch, before.leased_until)
                assert one.mark == following.mark

    async def test_task_that_ends_has_no_holder(self) -> None:
        """Nor has one whose work is done elsewhere from now on."""
        async with self.open_store() as store:
            for name, phase in (("ends", TaskPhase.CANCELLED), ("leaves", TaskPhase.WORKING)):
                one = await create(store, record(name, holder="me"))
                assert await change(store, one, holder="me", phase=phase, is_external=name == "leaves") is not None
                kept = await read_record(store, name)
                assert (kept.holder, kept.leased_until) == (None, 0)

    async def test_first_of_many_changes_wins(self) -> None:
        """Of twenty that change the same record at the same time, in two stores, one succeeds."""
        async with self.open_store() as store, self.open_store() as other:
            one, won = await create(store, record("one")), list[str]()

            async def try_to_change(number: int) -> None:
                if await change((store, other)[number % 2], one, message=f"by {number}") is not None:
                    won.append(f"by {number}")

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(try_to_change, number)
            assert [(await read_record(store, "one")).message] == won

    async def test_cancelled_create_is_whole_or_nothing(self) -> None:
        """A create that returned has kept the record, and one that was cancelled has not."""
        async with self.open_store() as store:
            for at in interruptions():
                returned = await at.call(create, store, record(f"task {at.step}"))
                assert (await store.read("ann", f"task {at.step}") is not None) == bool(returned)

    async def test_cancelled_void_is_whole_or_nothing(self) -> None:
        """A void that returned has deleted the record, and one that was cancelled has not."""

        async def void(task_id: str) -> bool:
            return await store.discard(task_id, retention_ms=HOUR)

        async with self.open_store() as store:
            for at in interruptions():
                await create(store, record(f"task {at.step}"))
                returned = await at.call(void, f"task {at.step}")
                assert (await store.read(None, f"task {at.step}") is None) == bool(returned)

    async def test_cancelled_change_is_whole_or_nothing(self) -> None:
        """A change that returned has kept the next version, and one that was cancelled has not."""
        async with self.open_store() as store:
            await create(store, record("one"))

            async def take(message: str) -> bool:
                return await change(store, before, message=message) is not None

            for at in interruptions():
                before = await read_record(store, "one")
                returned = await at.call(take, f"step {at.step}")
                expected = f"step {at.step}" if returned == [True] else before.message
                assert (await read_record(store, "one")).message == expected
