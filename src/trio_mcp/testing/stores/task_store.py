"""TaskStoreSuite: all tests of a task store.

Records are listed in one order, and are deleted when their time has passed. Watchers are notified of changes, and never
block a writer.
"""

from __future__ import annotations

from functools import partial

import attrs
import trio

from ...stores.task_store import HintsLost, TaskCursor, TaskPhase, TaskRecord, TaskStore
from .task_store_records import (
    HOUR,
    RecordTests,
    TestedTaskStorage,
    change,
    claim,
    create,
    finished,
    interruptions,
    next_of,
    read_record,
    read_stored,
    record,
    wait_past,
)
from .tested_storage import PATIENCE, cancel_one_wait, expect_hints, run_concurrently


class PageTests(TestedTaskStorage):
    """Tests of `TaskStore.page` and `TaskStore.expire`."""

    async def test_page_lists_task_records_in_the_order_of_creation(self) -> None:
        """Pages list task records in the order of creation, even if two stores create them in the same millisecond."""
        async with self.open_store() as store, self.open_store() as other:
            names = [f"{99 - number}" for number in range(40)]
            for number, name in enumerate(names):
                await create((store, other)[number % 2], record(name))
            assert await ids(store, None) == names

    async def test_page_lists_only_the_task_records_of_its_scope(self) -> None:
        """A page lists only the task records of one owner's scope, which may be an empty string."""
        async with self.open_store() as store:
            anns = await create(store, record("a"))
            await create(store, record("b", scope="bob"))
            anonymous = await create(store, record("n", scope=""))
            assert list(await store.page("ann", None, 9)) == [anns]
            assert list(await store.page("", None, 9)) == [anonymous]
            assert list(await store.page("carol", None, 9)) == []

    async def test_page_begins_after_its_cursor_and_has_at_most_limit_task_records(self) -> None:
        """A page has at most ``limit`` task records, and the next page begins after the given cursor."""
        async with self.open_store() as store:
            cursors = [cursor_of(await create(store, record(f"task {number}"))) for number in range(8)]
            for limit in (0, -1):
                assert await ids(store, None, limit) == []
            assert await ids(store, None, 3) == ["task 0", "task 1", "task 2"]
            assert await ids(store, cursors[2], 3) == ["task 3", "task 4", "task 5"]
            assert await ids(store, cursors[5], 3) == ["task 6", "task 7"]
            assert await ids(store, cursors[7], 3) == []

    async def test_pages_list_each_task_record_once_while_other_records_change(self) -> None:
        """A task record is listed exactly once, even if other records are created, changed or deleted while the pages
        are read."""
        async with self.open_store() as store, self.open_store() as other:
            created = [await create(store, record(f"task {number}")) for number in range(6)]
            first = await store.page("ann", None, 2)
            await create(other, record("late"))
            assert await other.discard("task 0", retention_ms=HOUR)
            assert await other.change(finished(created[3]), expected_mark=created[3].mark, holder=None)
            rest = await store.page("ann", cursor_of(first[-1]), 2)
            names = [each.id for each in (*first, *rest)] + await ids(store, cursor_of(rest[-1]))
            assert names == [*(f"task {number}" for number in range(6)), "late"]

    async def test_page_cursor_stays_valid_after_its_task_record_is_deleted(self) -> None:
        """A cursor (a position in the list of task records) stays valid even if its record is deleted or never
        existed."""
        async with self.open_store() as store:
            created = [await create(store, record(f"task {number}")) for number in range(3)]
            gone = cursor_of(created[1])
            assert await store.discard("task 1", retention_ms=HOUR)
            assert await ids(store, gone) == ["task 2"]
            assert await ids(store, (0, "")) == ["task 0", "task 2"]
            assert await ids(store, (2**62, "\ud800")) == []

    async def test_expire_deletes_task_records_whose_deletion_time_has_passed(self) -> None:
        """`expire` deletes each task record whose deletion time has passed, even if its task hasn't ended. Records
        without a deletion time stay."""
        async with self.open_store() as store, self.open_store() as other:
            past = await create(store, record("past", holder="one"), ttl_ms=1, retention_ms=0)
            end = await create(store, record("end"), ttl_ms=0, retention_ms=1)
            assert await store.change(finished(end), expected_mark=end.mark, holder=None)
            await create(store, record("present"))
            await create(store, record("forever"), ttl_ms=None)
            await wait_past(store, past, max(past.kept_until or 0, end.kept_until or 0))
            assert await store.expire(limit=9) == 2
            assert await store.expire(limit=9) == 0
            assert await ids(other, None) == ["present", "forever"]
            assert await other.read(None, "past") is None

    async def test_expire_deletes_at_most_limit_task_records(self) -> None:
        """`expire` deletes at most ``limit`` task records, and leaves the rest to the next call."""
        async with self.open_store() as store:
            created = [await create(store, record(f"task {number}"), ttl_ms=1, retention_ms=0) for number in range(5)]
            await wait_past(store, created[-1], created[-1].kept_until or 0)
            assert [await store.expire(limit=limit) for limit in (0, 2, 2, 2, 2)] == [0, 2, 2, 1, 0]

    async def test_page_omits_task_records_whose_deletion_time_has_passed(self) -> None:
        """A task record whose deletion time has passed isn't listed, even before it is deleted."""
        async with self.open_store() as store:
            past = await create(store, record("past"), ttl_ms=1, retention_ms=0)
            await create(store, record("present"))
            await wait_past(store, past, past.kept_until or 0)
            assert await ids(store, None, 1) == ["present"]

    async def test_change_can_move_or_remove_the_deletion_time_of_a_task_record(self) -> None:
        """`TaskStore.change` can make the deletion time of a task record later or earlier, or remove it."""
        async with self.open_store() as store:
            for name in ("later", "earlier", "never"):
                one = await create(store, record(name), ttl_ms=1 if name == "later" else HOUR, retention_ms=0)
                until = {"later": one.created_at + HOUR, "earlier": one.created_at + 1, "never": None}[name]
                assert await change(store, one, kept_until=until) is not None
            await wait_past(store, one, one.created_at + 1)
            assert await store.expire(limit=9) == 1
            assert await ids(store, None) == ["later", "never"]

    async def test_deleted_task_records_do_not_count_towards_the_limits(self) -> None:
        """A deleted task record no longer counts towards any limit."""
        async with self.open_store() as store:
            for turn in range(3):
                one = await create(store, record(f"task {turn}"), ttl_ms=0, retention_ms=0, limit=1, scope_limit=1)
                await wait_past(store, one, one.created_at)
                assert await store.expire(limit=9) == 1

    async def test_cancelled_expire_of_task_records_is_atomic(self) -> None:
        """If `TaskStore.expire` is cancelled, it deletes no task record."""
        async with self.open_store() as store:

            async def expire() -> int:
                return await store.expire(limit=9)

            for at in interruptions():
                for number in range(3):
                    one = await create(store, record(f"task {at.step} {number}", scope=str(at.step)))
                    one_more = next_of(one, kept_until=one.created_at)
                    await wait_past(store, one, one.created_at)
                    assert await store.change(one_more, expected_mark=one.mark, holder=None)
                returned = await at.call(expire)
                left = [await store.read(None, f"task {at.step} {number}") for number in range(3)]
                assert [each is None for each in left] == [bool(returned)] * 3
                await store.expire(limit=9)


def cursor_of(record: TaskRecord) -> TaskCursor:
    """Return the cursor for the page of task records that begins after ``record``."""
    return record.position, record.id


async def ids(store: TaskStore, after: TaskCursor | None, limit: int = 99) -> list[str]:
    """Return the ids of the task records on one page."""
    return [each.id for each in await store.page("ann", after, limit)]


class LeaseTests(TestedTaskStorage):
    """Tests of `TaskStore.claim` and `TaskStore.renew`, and of the lease after `TaskStore.change`."""

    async def test_claim_stores_holder_and_lease_and_increases_epoch_and_version(self) -> None:
        """`claim` stores the new holder and its lease in the task record, increases epoch and version by 1, and returns
        the record."""
        async with self.open_store() as store, self.open_store() as other:
            one = await create(store, record("one", epoch=2, version=5))
            claimed = (await claim(store, "me:1", lease_ms=1000))["one"]
            changes = {"holder": "me:1", "epoch": 3, "version": 6, "mark": b"me:1"}
            assert claimed == attrs.evolve(one, leased_until=claimed.leased_until, **changes)
            assert one.created_at + 1000 <= claimed.leased_until <= (await read_stored(store, "one")).now + 1000
            assert await read_record(other, "one") == claimed

    async def test_task_can_be_claimed_after_its_lease_has_expired(self) -> None:
        """A task can be claimed after its lease has expired, even if it waits for a client's response to an input
        request."""
        async with self.open_store() as store:
            await create(store, record("alive", holder="alive"))
            late = await create(store, record("over", holder="dead"), lease_ms=1)
            asking = record("asking", holder="dead", phase=TaskPhase.INPUT_REQUIRED)
            await wait_past(store, late, (await create(store, asking, lease_ms=1)).leased_until)
            assert set(await claim(store, "me")) == {"over", "asking"}
            assert await claim(store, "you") == {}

    async def test_task_cannot_be_claimed_in_the_last_millisecond_of_its_lease(self) -> None:
        """A task can't be claimed in the last millisecond of its lease."""
        async with self.open_store() as store:
            for number in range(20):
                one = await create(store, record(f"task {number}", holder="me"), lease_ms=2)
                while not await claim(store, f"you {number}"):
                    await trio.lowlevel.checkpoint()
                assert (await read_stored(store, one.id)).now > one.leased_until

    async def test_claim_skips_ended_cancelled_and_external_tasks(self) -> None:
        """`claim` skips tasks that have ended or were cancelled, and tasks whose work is done by code outside of a
        handler."""
        async with self.open_store() as store:
            await create(store, record("ended", phase=TaskPhase.ENDED))
            await create(store, record("cancelled", phase=TaskPhase.CANCELLED))
            await create(store, record("external", is_external=True))
            for name, phase in (("ends later", TaskPhase.ENDED), ("becomes external", TaskPhase.WORKING)):
                one = await create(store, record(name, holder="one"), lease_ms=1)
                assert await change(store, one, phase=phase, is_external=name == "becomes external") is not None
                await wait_past(store, one, one.leased_until)
            assert await claim(store, "me") == {}

    async def test_claim_returns_only_tasks_of_the_given_tools(self) -> None:
        """`claim` takes only tasks of the given tools. Tasks of other tools stay free for processes that have these
        tools."""
        async with self.open_store() as store, self.open_store() as other:
            for number in range(5):
                await create(store, record(f"old {number}", name="other"))
            await create(store, record("one"))
            await create(store, record("two", name="\N{SNOWMAN} too"))
            assert await claim(store, "me", names=()) == {}
            assert await claim(store, "me", names=("Report", "repor", "")) == {}
            claimed = await claim(store, "me", limit=3, names=("report", "\N{SNOWMAN} too", "third"))
            assert set(claimed) == {"one", "two"}
            assert len(await claim(other, "you", names=("other",))) == 5

    async def test_claim_returns_at_most_limit_tasks_longest_waiting_first(self) -> None:
        """`claim` takes at most ``limit`` tasks, and leaves the rest. The tasks that have waited longest come first."""
        async with self.open_store() as store:
            leases = [await create(store, record(f"over {number}", holder="dead"), lease_ms=1) for number in range(2)]
            await wait_past(store, leases[-1], leases[-1].leased_until)
            for number in range(3):
                await create(store, record(f"free {number}"))
            for limit in (0, -1):
                assert await claim(store, "me", limit=limit) == {}
            first = await claim(store, "me", limit=3)
            second = await claim(store, "you", limit=3)
            assert set(first) == {"free 0", "free 1", "free 2"}
            assert set(second) == {"over 0", "over 1"}

    async def test_task_that_was_given_up_is_claimed_after_tasks_that_have_waited_longer(self) -> None:
        """If a process gives up a task, `claim` first returns the tasks that were free earlier, and then this task."""
        async with self.open_store() as store:
            held = await create(store, record("given up", holder="me"))
            free = await create(store, record("free"))
            await wait_past(store, free, free.created_at)
            assert await store.change(next_of(held, holder=None), expected_mark=held.mark, holder="me", give_up=True)
            assert set(await claim(store, "you", limit=1)) == {"free"}
            assert set(await claim(store, "you", limit=1)) == {"given up"}

    async def test_concurrent_claim_calls_never_claim_the_same_task(self) -> None:
        """If ten `claim` calls run concurrently in two stores, each task is claimed by exactly one call."""
        async with self.open_store() as store, self.open_store() as other:
            for number in range(50):
                await create(store, record(str(number)))
            calls = [partial(claim, (store, other)[n % 2], f"owner {n}", limit=7) for n in range(10)]
            claims = [each for each in await run_concurrently(calls) if isinstance(each, dict)]
            claimed = sorted((each.id, each.holder, each.epoch) for tasks in claims for each in tasks.values())
            assert (len(claims), len(claimed)) == (10, 50)
            assert claimed == sorted([(each.id, each.holder, 1) for each in await store.page("ann", None, 99)])

    async def test_task_that_was_given_up_can_be_claimed_immediately(self) -> None:
        """After a process gives up its task with `change`, the task can be claimed at once. The same call can change
        other fields of the record."""
        async with self.open_store() as store:
            await create(store, record("one"))
            claimed = (await claim(store, "me"))["one"]
            assert await change(store, claimed, holder="me", give_up=True, attempt=0) is not None
            left = await read_record(store, "one")
            assert (left.holder, left.leased_until, left.attempt) == (None, 0, 0)
            again = (await claim(store, "you"))["one"]
            assert (again.holder, again.epoch) == ("you", 2)
            assert await change(store, again, holder="me") is None

    async def test_renew_extends_the_lease_without_changing_the_mark_of_the_task_record(self) -> None:
        """`renew` extends a task's lease without changing the record's mark, so that the holder can still change the
        record."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, record("one"))
            await create(store, record("two"))
            claimed = await claim(store, "me", lease_ms=1)
            assert set(await store.renew({"one": "me"}, lease_ms=HOUR)) == set()
            renewed = await read_record(other, "one")
            assert renewed.leased_until > claimed["one"].leased_until + HOUR - 1000
            assert attrs.evolve(renewed, leased_until=claimed["one"].leased_until) == claimed["one"]
            assert await read_record(other, "two") == claimed["two"]
            await wait_past(store, claimed["two"], claimed["two"].leased_until)
            assert set(await claim(other, "you")) == {"two"}
            assert await change(store, claimed["one"], holder="me") is not None

    async def test_renew_returns_the_tasks_that_the_process_no_longer_holds(self) -> None:
        """`renew` returns the tasks whose leases the process can't renew, because it no longer holds the tasks.

        They have another holder, have ended, were given up or deleted, or their work is now done by code outside of a
        handler.
        """
        async with self.open_store() as store:
            names = ("mine", "reclaimed", "ended", "cancelled", "given up", "external", "deleted")
            for name in names:
                await create(store, record(name))
            mine = await claim(store, "me")
            assert await change(store, mine["ended"], phase=TaskPhase.ENDED) is not None
            assert await change(store, mine["cancelled"], phase=TaskPhase.CANCELLED) is not None
            assert await change(store, mine["external"], is_external=True) is not None
            assert await store.discard("deleted", retention_ms=1)
            assert await change(store, mine["reclaimed"], holder="me", give_up=True) is not None
            assert set(await claim(store, "you")) == {"reclaimed"}
            assert await change(store, mine["given up"], holder="me", give_up=True) is not None
            lost = await store.renew(dict.fromkeys((*names, "never"), "me"), lease_ms=HOUR)
            assert set(lost) == {*names, "never"} - {"mine"}

    async def test_renew_checks_the_holder_of_each_task_separately(self) -> None:
        """`renew` takes a holder token for each task, because a process uses a new token for each claim."""
        async with self.open_store() as store:
            for number in range(2):
                await create(store, record(f"task {number}"))
                assert set(await claim(store, f"me:{number}")) == {f"task {number}"}
            assert set(await store.renew({"task 0": "me:0", "task 1": "me:0"}, lease_ms=HOUR)) == {"task 1"}
            assert set(await store.renew({"task 0": "me:0", "task 1": "me:1"}, lease_ms=HOUR)) == set()
            assert await claim(store, "you") == {}

    async def test_renew_accepts_thousands_of_task_ids_in_one_call(self) -> None:
        """`renew` accepts thousands of task ids in one call."""
        async with self.open_store() as store:
            for number in range(40):
                await create(store, record(f"task {number}", holder="me"))
            held = dict.fromkeys([f"task {number}" for number in range(40_000)], "me")
            lost = await store.renew(held, lease_ms=HOUR)
            assert set(lost) == {f"task {number}" for number in range(40, 40_000)}

    async def test_expired_lease_can_be_renewed_until_the_task_is_claimed(self) -> None:
        """An expired lease can be renewed until another process has claimed the task."""
        async with self.open_store() as store:
            one = await create(store, record("one", holder="me"), lease_ms=1)
            await wait_past(store, one, one.leased_until)
            assert set(await store.renew({"one": "me"}, lease_ms=HOUR)) == set()
            assert await claim(store, "you") == {}

    async def test_renew_without_tasks_returns_no_lost_tasks(self) -> None:
        """If `renew` is called without tasks, it returns no lost tasks."""
        async with self.open_store() as store:
            assert set(await store.renew({}, lease_ms=HOUR)) == set()

    async def test_cancelled_claim_of_tasks_is_atomic(self) -> None:
        """If `claim` is cancelled, no task is claimed."""
        async with self.open_store() as store:
            for at in interruptions():
                for number in range(3):
                    await create(store, record(f"task {at.step} {number}"))
                returned = await at.call(claim, store, f"me {at.step}")
                assert len(await claim(store, f"you {at.step}")) == (0 if returned else 3)

    async def test_cancelled_renewal_of_leases_is_atomic(self) -> None:
        """If `renew` is cancelled, every lease is unchanged."""
        async with self.open_store() as store:
            held = {"one": "me", "two": "me"}
            for name in held:
                await create(store, record(name, holder="me"))

            async def renew(lease: int) -> None:
                assert set(await store.renew(held, lease_ms=lease)) == set()

            for at in interruptions():
                leases = [(await read_record(store, name)).leased_until for name in held]
                returned = await at.call(renew, (at.step + 1) * HOUR)
                changed = [
                    (await read_record(store, name)).leased_until > lease
                    for name, lease in zip(held, leases, strict=True)
                ]
                assert changed == [bool(returned)] * 2


class HintTests(TestedTaskStorage):
    """Tests of `TaskStore.watch`."""

    async def test_task_store_watcher_is_notified_of_each_kind_of_change(self) -> None:
        """A watcher of the task store is notified when a task record is created, changed, claimed or deleted."""
        async with self.open_store() as store:
            await _expect_all_hints(store, store)

    async def test_task_store_watcher_is_notified_of_changes_by_other_processes(self) -> None:
        """A watcher is notified of changes by other processes. The test makes them with another store object for the
        same storage."""
        async with self.open_store() as store, self.open_store() as other:
            await _expect_all_hints(store, other)

    async def test_task_store_watcher_is_not_notified_of_changes_before_its_start(self) -> None:
        """A watcher isn't notified of task records that were changed before it called `watch`."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, record("before"))
            await create(other, record("before, elsewhere"))
            async with store.watch() as hints:
                await create(other, record("after"))
                with trio.fail_after(PATIENCE):
                    assert await anext(hints) == "after"

    async def test_every_task_store_watcher_is_notified_even_if_another_watcher_stops(self) -> None:
        """Each watcher of the task store is notified of all changes, even if another watcher stops watching."""
        async with self.open_store() as store, store.watch() as hints:
            async with store.watch() as others:
                await create(store, record("one"))
                await expect_hints(others, "one")
                await expect_hints(hints, "one")
            await create(store, record("two"))
            await expect_hints(hints, "two")

    async def test_slow_task_store_watcher_does_not_block_writers(self) -> None:
        """A watcher that doesn't read its notifications blocks no writer. If notifications are lost, the watcher gets
        `HINTS_LOST` when it reads again.

        The watcher gets all later notifications.
        """
        async with self.open_store() as store, store.watch() as hints:
            one = await create(store, record("one"))
            with trio.fail_after(PATIENCE):
                for _ in range(1500):
                    changed = await change(store, one)
                    assert changed is not None
                    one = changed
                gaps, is_over = 0, False
                while not is_over:
                    # Wait longer for the first report of lost notifications, because the machine may be slow.
                    with trio.move_on_after(0.1 if gaps else 2.0) as scope:
                        gaps += isinstance(await anext(hints), HintsLost)
                    is_over = scope.cancelled_caught
                assert gaps > 0
            await create(store, record("two"))
            await expect_hints(hints, "two")

    async def test_task_store_watcher_is_notified_after_a_cancelled_wait(self) -> None:
        """After a cancelled wait for a notification, the watcher still gets later notifications."""
        async with self.open_store() as store, store.watch() as hints:
            await cancel_one_wait(hints)
            await create(store, record("one"))
            await expect_hints(hints, "one")


async def _expect_all_hints(store: TaskStore, other: TaskStore) -> None:
    old = await create(store, record("old", is_external=True), ttl_ms=1, retention_ms=0)
    gone = await create(store, record("gone", is_external=True))
    await wait_past(store, gone, old.kept_until or 0)
    async with store.watch() as hints:
        one = await create(other, record("new"))
        await expect_hints(hints, "new")
        await change(other, one)
        await expect_hints(hints, "new")
        await claim(other, "me")
        await expect_hints(hints, "new")
        await other.expire(limit=9)
        await expect_hints(hints, "old")
        await other.discard("gone", retention_ms=HOUR)
        await expect_hints(hints, "gone")


class TaskStoreSuite(RecordTests, PageTests, LeaseTests, HintTests):
    """Tests for each guarantee in the docstrings of `TaskStore`. Every implementation must pass them.

    Inherit the suite in a test class that opens the store. pytest needs ``pytest-trio`` and ``trio_mode = true``::

        class TestMyStore(TaskStoreSuite):
            @pytest.fixture(autouse=True)
            def storage(self, tmp_path):
                self.path = tmp_path / "tasks"

            def open_store(self):
                return MyStore(self.path)

    Some tests wait in real time, so don't use a virtual clock.
    """
