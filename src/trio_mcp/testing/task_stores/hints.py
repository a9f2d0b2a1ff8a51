"""HintTests: who watches is told of changes, and holds up nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from .storage import NOW, TestedStorage, claim_of, create, next_of, record

__all__ = ["HintTests"]

_PATIENCE = 60.0
"""Seconds after which a hint is taken never to come."""


class HintTests(TestedStorage):
    """The tests of `watch`."""

    async def test_watcher_is_told_of_each_kind_of_change(self) -> None:
        """A record that is created, changed, claimed or deleted gives a hint."""
        async with self.open_store() as store:
            await create(store, record("old", kept_until=NOW, is_external=True))
            async with store.watch() as hints:
                await create(store, record("new"))
                await told(hints, "new")
                await store.change(next_of(record("new")))
                await told(hints, "new")
                await store.claim(claim_of("me"))
                await told(hints, "new")
                await store.expire(NOW + 1)
                await told(hints, "old")

    async def test_watcher_is_told_of_changes_in_other_stores(self) -> None:
        """Another store of the same storage stands for another process."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, record("old", kept_until=NOW, is_external=True))
            async with store.watch() as hints:
                await create(other, record("new"))
                await told(hints, "new")
                await other.change(next_of(record("new")))
                await told(hints, "new")
                await other.claim(claim_of("me"))
                await told(hints, "new")
                await other.expire(NOW + 1)
                await told(hints, "old")

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
        """Hints that nobody reads are lost in the end; later hints are not."""
        async with self.open_store() as store, store.watch() as hints:
            one = record("one")
            await create(store, one)
            with trio.fail_after(_PATIENCE):
                for _ in range(1500):
                    one = next_of(one)
                    assert await store.change(one)
                with trio.move_on_after(0.1):
                    async for _ in hints:
                        pass
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


async def told(hints: AsyncIterator[str], task_id: str) -> None:
    """Wait for a hint of the task."""
    with trio.fail_after(_PATIENCE):
        async for hint in hints:
            if hint == task_id:
                return
    raise AssertionError("the stream of hints has ended")
