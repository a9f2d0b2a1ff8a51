"""HintTests: who watches is told of changes, and holds up nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from ...stores.task_store import Gap, Hint, TaskStore
from .storage import HOUR, TestedStorage, change, claim, create, over, record

_PATIENCE = 60.0
"""Seconds after which a hint is taken never to come."""


class HintTests(TestedStorage):
    """The tests of `watch`."""

    async def test_watcher_is_told_of_each_kind_of_change(self) -> None:
        """A record that is created, changed, claimed or deleted gives a hint."""
        async with self.open_store() as store:
            await _told_of_all(store, store)

    async def test_watcher_is_told_of_changes_in_other_stores(self) -> None:
        """Another store of the same storage stands for another process."""
        async with self.open_store() as store, self.open_store() as other:
            await _told_of_all(store, other)

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
                await told(others, "one")
                await told(hints, "one")
            await create(store, record("two"))
            await told(hints, "two")

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
                    with trio.move_on_after(0.1) as scope:
                        gaps += isinstance(await anext(hints), Gap)
                    is_over = scope.cancelled_caught
                assert gaps > 0
            await create(store, record("two"))
            await told(hints, "two")

    async def test_waiting_for_a_hint_can_be_cancelled(self) -> None:
        """The stream goes on afterwards."""
        async with self.open_store() as store, store.watch() as hints:
            with trio.move_on_after(0.01) as scope:
                await anext(hints)
            assert scope.cancelled_caught
            await create(store, record("one"))
            await told(hints, "one")


async def _told_of_all(store: TaskStore, other: TaskStore) -> None:
    old = await create(store, record("old", is_external=True), ttl=1, keep=0)
    gone = await create(store, record("gone", is_external=True))
    await over(store, gone, old.kept_until or 0)
    async with store.watch() as hints:
        one = await create(other, record("new"))
        await told(hints, "new")
        await change(other, one)
        await told(hints, "new")
        await claim(other, "me")
        await told(hints, "new")
        await other.expire(most=9)
        await told(hints, "old")
        await other.void("gone", keep=HOUR)
        await told(hints, "gone")


async def told(hints: AsyncIterator[Hint], task_id: str) -> None:
    """Wait for a hint of the task."""
    with trio.fail_after(_PATIENCE):
        async for hint in hints:
            if hint == task_id:
                return
    raise AssertionError("the stream of hints has ended")
