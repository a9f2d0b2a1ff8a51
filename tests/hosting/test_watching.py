"""The latest news of each thing, for readers who may be slow."""

from __future__ import annotations

import gc
from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.hosting.catalogue import ChangeFeed, Watch


async def all_of(watch: Watch[Any]) -> list[Any]:
    """What can be had without waiting."""
    taken: list[Any] = []
    with trio.move_on_after(1):
        async for value in watch:
            taken.append(value)
    return taken


async def test_new_watcher_of_a_change_feed_first_gets_the_current_values(autojump_clock: MockClock) -> None:
    feed = ChangeFeed[str]()
    feed.publish("a", "a1")
    feed.publish("b", "b1")
    feed.publish("a", "a2")
    assert await all_of(feed.watch()) == ["a2", "b1"]


async def test_slow_watcher_of_a_change_feed_gets_only_the_latest_value_of_each_key(autojump_clock: MockClock) -> None:
    feed = ChangeFeed[str]()
    watch = feed.watch()
    for value in ("a1", "b1", "a2", "c1", "a3"):
        feed.publish(value[0], value)
    assert await all_of(watch) == ["b1", "c1", "a3"]


async def test_watchers_of_a_change_feed_can_read_at_different_speeds(autojump_clock: MockClock) -> None:
    feed = ChangeFeed[str]()
    quick, slow = feed.watch(), feed.watch()
    feed.publish("a", "a1")
    assert await all_of(quick) == ["a1"]
    feed.publish("a", "a2")
    assert await all_of(quick) == ["a2"]
    assert await all_of(slow) == ["a2"]


async def test_change_feed_watcher_that_waits_is_woken_by_a_published_value(autojump_clock: MockClock) -> None:
    feed = ChangeFeed[str]()
    taken: list[str] = []

    async def take() -> None:
        taken.append(await feed.watch().__anext__())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        feed.publish("a", "a1")
    assert taken == ["a1"]


async def test_watcher_of_a_change_feed_is_not_notified_of_a_removed_key_that_it_never_read(
    autojump_clock: MockClock,
) -> None:
    feed = ChangeFeed[str]()
    watch = feed.watch()
    feed.publish("a", "a1")
    feed.publish("a", "end", last=True)
    assert await all_of(watch) == []


async def test_watcher_of_a_change_feed_is_notified_of_a_removed_key_that_it_has_read(
    autojump_clock: MockClock,
) -> None:
    feed = ChangeFeed[str]()
    feed.publish("a", "a1")
    watch = feed.watch()
    assert await all_of(watch) == ["a1"]
    feed.publish("a", "end", last=True)
    assert await all_of(watch) == ["end"]


async def test_closed_change_feed_ends_its_watchers_after_all_values(autojump_clock: MockClock) -> None:
    feed = ChangeFeed[str]()
    watch = feed.watch()
    feed.publish("a", "a1")
    feed.close()
    assert [value async for value in watch] == ["a1"]
    assert [value async for value in feed.watch()] == ["a1"]


async def test_cancelled_change_feed_watcher_loses_no_value(autojump_clock: MockClock) -> None:
    feed = ChangeFeed[str]()
    watch = feed.watch()
    feed.publish("a", "a1")
    with trio.CancelScope() as scope:
        scope.cancel()
        await watch.__anext__()
    assert await all_of(watch) == ["a1"]


def test_unreferenced_change_feed_watcher_is_garbage_collected() -> None:
    feed = ChangeFeed[str]()
    feed.watch()
    gc.collect()
    assert not feed._watches


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["news", "end", "read"])), max_size=60))
def test_watcher_of_a_change_feed_reaches_the_current_state_after_any_changes(
    steps: list[tuple[str, str]],
) -> None:
    feed = ChangeFeed[tuple[str, int, bool]]()
    watch, standing, known = feed.watch(), dict[str, int](), dict[str, int]()

    def take() -> None:
        key, number, last = step_of(watch)
        if last:
            del known[key]  # its end is told only of what was told
        else:
            known[key] = number

    for number, (key, what) in enumerate(steps):
        if what == "read" and watch._pending:
            take()
        elif what == "news":
            standing[key] = number
            feed.publish(key, (key, number, False))
        elif what == "end" and key in standing:
            del standing[key]
            feed.publish(key, (key, number, True), last=True)
        assert len(watch._pending) <= 3
    while watch._pending:
        take()
    assert known == standing


def step_of(watch: Watch[Any]) -> Any:
    """One step of a watch that has something to tell."""

    async def step() -> Any:
        return await watch.__anext__()

    return trio.run(step)
