"""RecordTests: tests that a `TaskStore` stores task records unchanged, keeps scopes apart, and changes records by
compare-and-set.

`TestedTaskStorage` opens the store under test. All groups of tests use the functions in this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

import attrs
import trio

from ...classes import define
from ...stores.task_store import Outcome, StoredTask, StoreFull, TaskPhase, TaskRecord, TaskStore, new_mark
from .tested_storage import run_concurrently

HOUR: Final = 3_600_000
"""One hour in milliseconds: longer than any test runs."""

T = TypeVar("T")


class TestedTaskStorage:
    """Base class of the task store tests: opens stores of the storage under test, which is empty when a test begins."""

    def open_store(self) -> AbstractAsyncContextManager[TaskStore]:
        """Open a task store. All stores that one test opens share the same storage."""
        raise NotImplementedError("a test class that inherits this suite must define open_store()")


def record(task_id: str, **changes: Any) -> TaskRecord:
    """Return a new task record to pass to `TaskStore.create`. ``changes`` override the default fields."""
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
    """Create a task record whose lease, time to live and retention are an hour each, and return it.

    ``changes`` override the arguments of `TaskStore.create`. The default limits are too high to be reached.
    """
    times = dict.fromkeys(("lease_ms", "ttl_ms", "retention_ms"), HOUR)
    return await store.create(new, **{**times, "limit": 1_000_000, "scope_limit": 1_000_000, **changes})


def next_of(record: TaskRecord, **changes: Any) -> TaskRecord:
    """Return a copy of ``record`` as its next version, with new random bytes as the mark that identifies this version.
    The copy isn't stored."""
    return attrs.evolve(record, version=record.version + 1, mark=new_mark(), **changes)


def finished(record: TaskRecord) -> TaskRecord:
    """Return a copy of ``record`` as its next version, in which the task has ended. The copy isn't stored."""
    return next_of(record, phase=TaskPhase.ENDED, outcome=Outcome(b"{}"), holder=None, leased_until=0)


async def change(
    store: TaskStore, record: TaskRecord, *, holder: str | None = None, give_up: bool = False, **changes: Any
) -> TaskRecord | None:
    """Change a stored task record, and return the new record. If the store refuses the change, return `None`.

    The change is made as ``holder`` or, with `None`, as any process.
    """
    following = next_of(record, **changes)
    is_changed = await store.change(following, expected_mark=record.mark, holder=holder, give_up=give_up)
    return following if is_changed else None


async def claim(
    store: TaskStore, holder: str, *, lease_ms: int = HOUR, limit: int = 1000, names: Collection[str] = ("report",)
) -> dict[str, TaskRecord]:
    """Claim tasks for ``holder``, and return their task records by id."""
    return {each.id: each for each in await store.claim(holder, lease_ms=lease_ms, limit=limit, names=names)}


async def read_stored(store: TaskStore, task_id: str) -> StoredTask:
    """Return the stored task record, with the current time of the store's clock."""
    found = await store.read(None, task_id)
    assert found is not None, f"{task_id} is not stored"
    return found


async def read_record(store: TaskStore, task_id: str) -> TaskRecord:
    """Return the stored task record."""
    return (await read_stored(store, task_id)).record


async def wait_past(store: TaskStore, record: TaskRecord, moment: int) -> None:
    """Wait until ``moment`` has passed on the clock of the store. To read the clock, read ``record``, which can be any
    task record in that store."""
    while (await read_stored(store, record.id)).now <= moment:  # noqa: ASYNC110 - the store has its own clock
        await trio.sleep(0.001)


async def expect_error(error: type[Exception], call: Awaitable[object]) -> None:
    """Check that awaiting ``call`` raises ``error``."""
    try:
        result = await call
    except error:
        return
    raise AssertionError(f"expected {error.__name__}, but the call returned {result!r}")


@define(eq=False)
class Interruption:
    """Cancels a call when the called function waits for the ``step``-th time.

    ``has_waited`` is true if any call waited that often.
    """

    step: int
    has_waited: bool = False

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> list[T]:
        """Call ``function`` with ``args``. Return a list with its result, or an empty list if the call was
        cancelled."""

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
    """Yield objects that cancel a call while it waits: the first object at the call's first wait, the next at its
    second wait, and so on. Stop when a call has ended before it could be cancelled."""
    for step in count(1):
        yield (interruption := Interruption(step))
        if not interruption.has_waited:
            return


class RecordTests(TestedTaskStorage):
    """Tests of `create`, `discard`, `read`, `marks` and `change` of a `TaskStore`."""

    async def test_task_record_is_read_as_it_was_created(self) -> None:
        """Every store object for the same storage reads a task record with all fields as they were created."""
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

    async def test_task_store_converts_durations_to_times_on_its_own_clock(self) -> None:
        """The task store converts durations, such as the time to live, to times on its own clock. This clock keeps
        running."""
        async with self.open_store() as store:
            one = await create(store, record("one", holder="me"), lease_ms=1000, ttl_ms=2000, retention_ms=3000)
            created_at = one.created_at
            assert (one.updated_at, one.expires_at, one.kept_until) == (
                created_at,
                created_at + 2000,
                created_at + 5000,
            )
            assert one.leased_until == created_at + 1000
            now = (await read_stored(store, "one")).now
            assert created_at <= now < created_at + HOUR
            await wait_past(store, one, now)

    async def test_task_without_a_time_to_live_never_expires(self) -> None:
        """A task without a time to live never expires, and its record is never deleted."""
        async with self.open_store() as store:
            one = await create(store, record("one"), ttl_ms=None, retention_ms=5)
            assert (one.expires_at, one.kept_until) == (None, None)

    async def test_task_without_a_holder_has_no_lease(self) -> None:
        """A task without a holder has no lease: the record's lease time is 0."""
        async with self.open_store() as store:
            assert (await create(store, record("one"))).leased_until == 0

    async def test_large_task_record_is_stored_unchanged(self) -> None:
        """The store stores a large task record whole. Limiting the size of records is up to its callers."""
        large = record("large", params=bytes(2**20), questions={str(number): bytes(100) for number in range(1000)})
        async with self.open_store() as store:
            assert await read_record(store, (await create(store, large)).id) == await read_record(store, "large")
            assert (await read_record(store, "large")).size == large.size

    async def test_read_returns_none_for_an_unknown_task_id_whatever_the_string(self) -> None:
        """`read` returns `None` for an unknown task id, whatever string a client sends."""
        async with self.open_store() as store:
            await create(store, record("known"))
            for text in ("", "unknown", "KNOWN", "known\0", "%", "*", "\ud800", "x" * 100_000):
                assert await store.read("ann", text) is None
                assert await store.read(None, text) is None

    async def test_read_finds_a_task_record_only_in_its_own_scope(self) -> None:
        """`read` finds a task record only for the scope of its owner, or for `None`, which means all scopes."""
        async with self.open_store() as store:
            anns, anonymous = await create(store, record("a")), await create(store, record("n", scope=""))
            assert await store.read("", "a") is None
            assert await store.read("bob", "a") is None
            assert await store.read("ann", "n") is None
            for scope, one in (("", anonymous), (None, anns), ("ann", anns)):
                read = await store.read(scope, one.id)
                assert read is not None
                assert read.record == one

    async def test_creating_a_task_record_with_an_id_that_exists_raises_value_error(self) -> None:
        """Creating a second task record with the same id raises an error. The first record is unchanged, and the failed
        call doesn't count towards the limits."""
        async with self.open_store() as store:
            one = await create(store, record("same"))
            await expect_error(ValueError, create(store, record("same", scope="bob")))
            assert await read_record(store, "same") == one
            await create(store, record("bobs", scope="bob"), limit=2, scope_limit=1)

    async def test_create_raises_store_full_if_the_store_has_limit_task_records(self) -> None:
        """`create` raises `StoreFull` if the store already has ``limit`` task records, of one owner or of many."""
        async with self.open_store() as store:
            for name in ("one", "two"):
                await create(store, record(name, scope=name), limit=2, scope_limit=2)
            await expect_error(StoreFull, create(store, record("three", scope="three"), limit=2, scope_limit=2))
            assert await store.read(None, "three") is None
            await create(store, record("three", scope="three"), limit=3, scope_limit=2)

    async def test_create_raises_store_full_only_in_the_scope_that_is_full(self) -> None:
        """`create` raises `StoreFull` if an owner already has ``scope_limit`` task records. Other owners can still
        create records."""
        async with self.open_store() as store:
            await create(store, record("anns"), limit=9, scope_limit=1)
            await expect_error(StoreFull, create(store, record("more"), limit=9, scope_limit=1))
            assert await store.read(None, "more") is None
            await create(store, record("bobs", scope="bob"), limit=9, scope_limit=1)

    async def test_concurrent_create_calls_respect_the_limits_of_the_task_store(self) -> None:
        """Of twenty concurrent `create` calls in two stores, exactly as many succeed as the store's limits allow."""
        async with self.open_store() as store, self.open_store() as other:
            calls = [
                partial(create, (store, other)[n % 2], record(f"task {n}"), limit=20, scope_limit=7) for n in range(20)
            ]
            results = await run_concurrently(calls)
            created = {each.id for each in results if not isinstance(each, Exception)}
            assert (len(created), sum(isinstance(each, StoreFull) for each in results)) == (7, 13)
            assert {each.id for each in await store.page("ann", None, 99)} == created

    async def test_discard_deletes_a_task_record(self) -> None:
        """`discard` deletes a task record, and returns true. The deleted record no longer counts towards the limits."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, record("one", holder="me"))
            assert await other.discard("one", retention_ms=HOUR) is True
            assert await store.read(None, "one") is None
            assert await claim(store, "you") == {}
            await create(store, record("two"), limit=1, scope_limit=1)

    async def test_discard_of_an_unknown_task_id_blocks_its_creation_for_a_while(self) -> None:
        """If the task id is unknown, `discard` returns false, and `create` refuses this id for a while, because a
        `create` call with this id may still be under way.

        Such a `create` call then fails.
        """
        async with self.open_store() as store, self.open_store() as other:
            assert await store.discard("late", retention_ms=HOUR) is False
            assert await store.discard("late", retention_ms=HOUR) is False
            await expect_error(ValueError, create(other, record("late")))
            assert await store.read(None, "late") is None
            one = await create(other, record("one"))
            assert await store.discard("soon", retention_ms=1) is False
            await wait_past(store, one, (await read_stored(store, "one")).now + 1)
            await create(store, record("soon"))

    async def test_marks_returns_the_current_mark_of_each_task_record(self) -> None:
        """`marks` returns the current mark of each stored task record: random bytes that identify the record's version.

        Each write of a record changes its mark.
        """
        async with self.open_store() as store, self.open_store() as other:
            one, two = await create(store, record("one")), await create(store, record("two", scope="bob"))
            assert dict(await other.marks(["one", "two", "never", "\ud800"])) == {"one": one.mark, "two": two.mark}
            changed = await change(store, one, message="new")
            assert changed is not None
            assert dict(await other.marks(["one"])) == {"one": changed.mark}
            assert dict(await store.marks([])) == {}

    async def test_marks_accepts_thousands_of_task_ids_in_one_call(self) -> None:
        """`marks` accepts thousands of task ids in one call. It returns the mark of each stored record: random bytes
        that identify the record's version."""
        async with self.open_store() as store:
            created = [await create(store, record(f"task {number}")) for number in range(40)]
            task_ids = [*(each.id for each in created), *(f"never {number}" for number in range(40_000))]
            assert dict(await store.marks(task_ids)) == {each.id: each.mark for each in created}

    async def test_change_replaces_all_fields_of_a_task_record(self) -> None:
        """`change` replaces all fields of a task record, for every store object that uses the same storage."""
        async with self.open_store() as store, self.open_store() as other:
            one = await create(store, record("one", message="old", answers={"a": b"1"}))
            new = await change(store, one, message="new", poll_ms=5, questions={"b": b"2"}, kept_until=None)
            assert new is not None
            assert await read_record(store, "one") == new
            assert await read_record(other, "one") == new

    async def test_change_of_a_task_record_with_a_wrong_expected_mark_is_refused(self) -> None:
        """`change` is refused if ``expected_mark`` isn't the mark of the stored record. A mark is random bytes that
        identify one version of a record.

        This is true even if the version number matches.
        """
        async with self.open_store() as store:
            one = await create(store, record("one"))
            new = await change(store, one, message="new")
            assert new is not None
            for wrong in (one.mark, b"", new_mark()):
                assert not await store.change(next_of(new, message="late"), expected_mark=wrong, holder=None)
                assert not await store.change(attrs.evolve(new, mark=new_mark()), expected_mark=wrong, holder=None)
            assert await read_record(store, "one") == new

    async def test_change_of_an_unknown_task_record_is_refused(self) -> None:
        """`change` of an unknown task record is refused, and creates no record."""
        async with self.open_store() as store:
            one = record("one")
            assert not await store.change(next_of(one), expected_mark=one.mark, holder=None)
            assert await store.read(None, "one") is None

    async def test_holder_of_a_task_can_change_its_task_record(self) -> None:
        """The process that created or claimed a task, its holder, can change the task record."""
        async with self.open_store() as store:
            one = await create(store, record("one", holder="me"))
            new = await change(store, one, holder="me", message="new")
            assert new is not None
            assert await read_record(store, "one") == new

    async def test_change_of_a_task_record_by_another_holder_is_refused(self) -> None:
        """If another process has claimed a task, the process that held the task before can't change its record, even if
        it knows the mark of the current version.

        A call without a holder can always change it.
        """
        async with self.open_store() as store:
            await create(store, record("one"))
            new = (await claim(store, "quick"))["one"]
            for holder in ("slow", "", "QUICK"):
                assert await change(store, new, holder=holder) is None
                assert not await store.change(finished(new), expected_mark=new.mark, holder=holder)
            assert await read_record(store, "one") == new
            assert await change(store, new, message="an answer") is not None

    async def test_holder_cannot_change_a_task_record_after_the_task_was_cancelled(self) -> None:
        """After a task was cancelled, the process that held it can no longer change its record."""
        async with self.open_store() as store:
            one = await create(store, record("one", holder="me"))
            cancelled = await change(store, one, phase=TaskPhase.CANCELLED)
            assert cancelled is not None
            assert await change(store, cancelled, holder="me", message="but I") is None

    async def test_change_ignores_holder_epoch_and_lease_of_the_given_task_record(self) -> None:
        """`change` doesn't change which process runs a task, and until when: it ignores the holder, epoch and lease in
        the given record.

        These values may be outdated.
        """
        async with self.open_store() as store:
            await create(store, record("one"))
            one = before = (await claim(store, "me"))["one"]
            for lease in ({"holder": None, "leased_until": 0}, {"holder": "you", "leased_until": 1, "epoch": 9}):
                following = next_of(one, **lease)
                assert await store.change(following, expected_mark=one.mark, holder=None)
                one = await read_record(store, "one")
                assert (one.holder, one.epoch, one.leased_until) == ("me", before.epoch, before.leased_until)
                assert one.mark == following.mark

    async def test_task_that_ends_or_becomes_external_has_no_holder(self) -> None:
        """A task record names a holder, the process that runs the handler, only until the task ends or code outside of
        a handler takes over the work."""
        async with self.open_store() as store:
            for name, phase in (("ends", TaskPhase.CANCELLED), ("leaves", TaskPhase.WORKING)):
                one = await create(store, record(name, holder="me"))
                assert await change(store, one, holder="me", phase=phase, is_external=name == "leaves") is not None
                stored = await read_record(store, name)
                assert (stored.holder, stored.leased_until) == (None, 0)

    async def test_only_one_of_many_concurrent_changes_of_a_task_record_succeeds(self) -> None:
        """Of twenty concurrent `change` calls for one task record in two stores, one succeeds."""
        async with self.open_store() as store, self.open_store() as other:
            one = await create(store, record("one"))
            calls = [partial(change, (store, other)[n % 2], one, message=f"by {n}") for n in range(20)]
            won = [each for each in await run_concurrently(calls) if each is not None]
            assert [await read_record(store, "one")] == won

    async def test_cancelled_create_of_a_task_record_is_atomic(self) -> None:
        """If `create` is cancelled, the task record isn't stored."""
        async with self.open_store() as store:
            for at in interruptions():
                returned = await at.call(create, store, record(f"task {at.step}"))
                assert (await store.read("ann", f"task {at.step}") is not None) == bool(returned)

    async def test_cancelled_discard_of_a_task_record_is_atomic(self) -> None:
        """If `discard` is cancelled, nothing changes."""

        async def discard(task_id: str) -> bool:
            return await store.discard(task_id, retention_ms=HOUR)

        async with self.open_store() as store:
            for at in interruptions():
                await create(store, record(f"task {at.step}"))
                returned = await at.call(discard, f"task {at.step}")
                assert (await store.read(None, f"task {at.step}") is None) == bool(returned)

    async def test_cancelled_change_of_a_task_record_is_atomic(self) -> None:
        """If `change` is cancelled, the task record is unchanged."""
        async with self.open_store() as store:
            await create(store, record("one"))

            async def set_message(message: str) -> bool:
                return await change(store, before, message=message) is not None

            for at in interruptions():
                before = await read_record(store, "one")
                returned = await at.call(set_message, f"step {at.step}")
                expected = f"step {at.step}" if returned == [True] else before.message
                assert (await read_record(store, "one")).message == expected
