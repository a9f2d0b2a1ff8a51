"""ChangeLogSuite: tests that each reader of a `ChangeLog` gets every change, or learns that anything may have
changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from functools import partial

import trio

from ...stores.shared import CHANGES_LIMIT, ChangeCursor, ChangeHint, ChangeLog
from ...stores.task_store import HintsLost
from .task_store_records import interruptions
from .tested_storage import HOSTILE, PATIENCE, TestedStorage, cancel_one_wait, run_concurrently


class ChangeLogSuite(TestedStorage):
    """Tests for each guarantee in the docstrings of `ChangeLog`. Every implementation must pass them. See
    `SharedStorageSuite`."""

    async def test_new_reader_of_the_change_log_gets_no_earlier_changes(self) -> None:
        """A new reader of the change log doesn't get changes that were recorded before its first read."""
        async with self.open_replica() as one, self.open_replica() as two:
            first = await one.changes.read_since(None)
            assert ([*first.changed], first.everything) == ([], False)
            await one.changes.record(["tools"])
            current = await two.changes.read_since(None)
            assert ([*current.changed], current.everything) == ([], False)
            assert current.cursor != first.cursor
            assert await changes_since(one.changes, current.cursor) == set()

    async def test_change_log_returns_each_change_after_the_cursor_once(self) -> None:
        """A read of the change log returns each name that any replica has recorded after the cursor exactly once. A
        read from the returned cursor returns no changes."""
        async with self.open_replica() as one, self.open_replica() as two:
            cursor = await current_cursor(one.changes)
            await one.changes.record(["tools", "resource:a"])
            await two.changes.record(["tools", "prompts"])
            await one.changes.record(["tools"])
            for each in (one, two):
                changes = await each.changes.read_since(cursor)
                assert sorted(changes.changed) == ["prompts", "resource:a", "tools"]
                assert not changes.everything
                assert changes.cursor == await current_cursor(two.changes)
                assert await changes_since(each.changes, changes.cursor) == set()

    async def test_change_that_is_recorded_again_is_returned_to_readers_of_the_first_record(self) -> None:
        """If the same change is recorded twice, readers that have seen only the first record get the change again.
        Older cursors stay valid."""
        async with self.open_replica() as one, self.open_replica() as two:
            cursors = [await current_cursor(one.changes)]
            for name in ("a", "b", "a", "c"):
                await two.changes.record([name])
                cursors.append(await current_cursor(one.changes))
            found = [await changes_since(two.changes, cursor) for cursor in cursors]
            assert found == [{"a", "b", "c"}, {"a", "b", "c"}, {"a", "c"}, {"c"}, set()]
            assert len(set(cursors)) == len(cursors)

    async def test_recording_an_empty_list_of_changes_does_not_move_the_cursor(self) -> None:
        """Recording an empty list of changes leaves the current cursor of the change log unchanged."""
        async with self.open_replica() as one:
            cursor = await current_cursor(one.changes)
            await one.changes.record([])
            assert await changes_since(one.changes, cursor) == set()
            assert await current_cursor(one.changes) == cursor

    async def test_name_of_a_recorded_change_can_be_any_string(self) -> None:
        """Any string can be the name of a change, such as a resource URI, and the change log confuses no two names."""
        async with self.open_replica() as one, self.open_replica() as two:
            cursor = await current_cursor(one.changes)
            await one.changes.record(HOSTILE)
            assert await changes_since(two.changes, cursor) == set(HOSTILE)
            for name in HOSTILE:
                cursor = await current_cursor(one.changes)
                await two.changes.record([name])
                assert await changes_since(one.changes, cursor) == {name}

    async def test_change_log_reports_everything_as_changed_for_an_invalid_cursor(self) -> None:
        """For an invalid cursor, the change log reports that anything may have changed, and returns a valid cursor to
        continue from."""
        async with self.open_replica() as one:
            await one.changes.record(["tools"])
            for text in (*HOSTILE, "0", "1", "-1", "1.1", "9" * 400, "\N{ARABIC-INDIC DIGIT ONE}"):
                changes = await one.changes.read_since(text)
                assert (changes.everything, [*changes.changed]) == (True, [])
                assert await changes_since(one.changes, changes.cursor) == set()

    async def test_change_log_reports_everything_as_changed_for_a_cursor_of_another_log(self) -> None:
        """For a cursor of another server's change log, the change log reports that anything may have changed."""
        async with self.open_replica() as one, self.open_replica("another server") as other:
            for _ in range(3):
                await one.changes.record(["tools"])
                await other.changes.record(["prompts"])
                assert (await one.changes.read_since(await current_cursor(other.changes))).everything

    async def test_change_log_reports_everything_as_changed_if_it_dropped_changes_after_the_cursor(self) -> None:
        """If changes after a cursor were dropped from the change log, it reports that anything may have changed. Newer
        cursors still get the exact changes."""
        async with self.open_replica() as one, self.open_replica() as two:
            start = await current_cursor(one.changes)
            await one.changes.record(["tools", "prompts"])
            cursors = list[ChangeCursor]()
            for batch in range(12):
                cursors.append(await current_cursor(one.changes))
                new = [f"resource:{batch}/{n}" for n in range(CHANGES_LIMIT // 10)]
                await (one, two)[batch % 2].changes.record(new)
                await two.changes.record(["tools"])
            for cursor in (start, cursors[0], cursors[1]):
                assert (await one.changes.read_since(cursor)).everything
            expected = {f"resource:{batch}/{n}" for batch in range(4, 12) for n in range(CHANGES_LIMIT // 10)}
            assert await changes_since(one.changes, cursors[4]) == {"tools", *expected}

    async def test_repeated_changes_with_known_names_displace_no_other_changes(self) -> None:
        """The change log limits the number of different names, so repeated changes with known names don't displace
        other changes."""
        async with self.open_replica() as one:
            cursor = await current_cursor(one.changes)
            await one.changes.record(["prompts"])
            resources = [f"resource:{number}" for number in range(1000)]
            for _ in range(30):
                await one.changes.record(resources)
            assert await changes_since(one.changes, cursor) == {"prompts", *resources}

    async def test_changes_recorded_concurrently_by_two_replicas_are_not_lost(self) -> None:
        """No change is lost while two replicas record many changes concurrently."""
        async with self.open_replica() as one, self.open_replica() as two:
            cursor = await current_cursor(one.changes)
            calls = [partial((one, two)[n % 2].changes.record, [f"resource:{n}", "tools"]) for n in range(40)]
            assert await run_concurrently(calls) == [None] * 40
            for each in (one, two):
                assert await changes_since(each.changes, cursor) == {"tools", *(f"resource:{n}" for n in range(40))}

    async def test_reader_that_follows_change_notifications_gets_every_change(self) -> None:
        """A reader that follows the notifications of a change log gets every change.

        A notification that begins at the reader's position is complete. After any other notification, and after lost
        ones, the reader reads the log.
        """
        async with self.open_replica() as one, self.open_replica() as two, one.changes.watch() as hints:
            reader = _ChangeReader(one.changes, await current_cursor(one.changes))
            names = {f"resource:{number}" for number in range(100)}

            async def record_each(changes: ChangeLog, own: Collection[str]) -> None:
                for name in own:
                    await changes.record([name])

            async with trio.open_nursery() as nursery:
                for number, each in enumerate((one, two)):
                    nursery.start_soon(record_each, each.changes, sorted(names)[number::2])
                await reader.read(hints, names)
            assert reader.cursor == await current_cursor(two.changes)

    async def test_change_notification_contains_exactly_the_changes_of_one_record_call(self) -> None:
        """After one `record` call on any replica, the change log sends a notification that contains exactly the changes
        of this call.

        This isn't guaranteed if other changes are recorded at the same time.
        """
        async with self.open_replica() as one, self.open_replica() as two, one.changes.watch() as hints:
            names = [text for text in HOSTILE if len(text) < 100]
            for each in (one, two):
                previous = await current_cursor(one.changes)
                await each.changes.record(names)
                cursor = await current_cursor(one.changes)
                with trio.fail_after(PATIENCE):
                    while True:
                        hint = await anext(hints)
                        if not isinstance(hint, HintsLost) and hint.cursor == cursor:
                            break
                assert (hint.previous, set(hint.changed)) == (previous, {*names})
                assert len(hint.changed) == len(names)

    async def test_change_log_watcher_is_not_notified_of_changes_before_its_start(self) -> None:
        """A watcher of the change log gets no changes from before its start. Other watchers that stop or are cancelled
        don't affect it."""
        async with self.open_replica() as one, self.open_replica() as two:
            await one.changes.record(["before"])
            await two.changes.record(["before, elsewhere"])
            async with one.changes.watch() as hints:
                cursor = await current_cursor(one.changes)
                reader, other = _ChangeReader(one.changes, cursor), _ChangeReader(one.changes, cursor)
                async with one.changes.watch() as others:
                    await cancel_one_wait(others)
                    await two.changes.record(["after"])
                    await other.read(others, {"after"})
                await reader.read(hints, {"after"})
                await one.changes.record(["later"])
                await reader.read(hints, {"after", "later"})

    async def test_slow_change_log_watcher_does_not_block_writers_and_gets_all_changes(self) -> None:
        """A watcher that doesn't read blocks no writer. When the watcher reads later, it gets all changes."""
        async with self.open_replica() as one, self.open_replica() as two, one.changes.watch() as hints:
            reader = _ChangeReader(one.changes, await current_cursor(one.changes))
            names = {f"resource:{number}" for number in range(1500)}
            for name in names:
                await two.changes.record([name])
            await reader.read(hints, names)
            await two.changes.record(["later"])
            await reader.read(hints, names | {"later"})

    async def test_cancelled_recording_of_changes_is_atomic(self) -> None:
        """If a `record` call is cancelled, either all of its changes are recorded in the log, or none."""
        async with self.open_replica() as one:
            for at in interruptions():
                cursor = await current_cursor(one.changes)
                names = {f"resource:{at.step}/{number}" for number in range(9)}
                returned = await at.call(one.changes.record, names)
                assert await changes_since(one.changes, cursor) == (names if returned else set())


class _ChangeReader:
    """Reads changes as a server does. If a notification doesn't start at the reader's cursor, it reads the log
    instead."""

    def __init__(self, changes: ChangeLog, cursor: ChangeCursor) -> None:
        self._changes = changes
        self.cursor = cursor
        self._known = set[str]()

    async def read(self, hints: AsyncIterator[ChangeHint | HintsLost], names: Collection[str]) -> None:
        """Read change notifications until all names in ``names``, and no other names, have been reported."""
        with trio.fail_after(PATIENCE):
            while self._known != set(names):
                hint = await anext(hints)
                if isinstance(hint, HintsLost) or hint.previous != self.cursor:
                    changes = await self._changes.read_since(self.cursor)
                    assert not changes.everything
                    self.cursor, changed = changes.cursor, changes.changed
                else:
                    self.cursor, changed = hint.cursor, hint.changed
                self._known.update(changed)


async def current_cursor(changes: ChangeLog) -> ChangeCursor:
    """Return the current end position of the change log."""
    return (await changes.read_since(None)).cursor


async def changes_since(changes: ChangeLog, cursor: ChangeCursor) -> set[str]:
    """Return the names that were recorded as changed after ``cursor``, and check that each is reported once."""
    found = await changes.read_since(cursor)
    assert not found.everything
    assert len(found.changed) == len(set(found.changed))
    return set(found.changed)
