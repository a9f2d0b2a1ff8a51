from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp.concurrency.wakeups import Sleeper


async def test_task_that_sleeps_on_a_sleeper_object_continues_when_another_task_wakes_it(nursery: trio.Nursery) -> None:
    sleeper, heard = Sleeper(), list[str]()

    async def sleep() -> None:
        await sleeper.sleep()
        heard.append("woken")

    nursery.start_soon(sleep)
    await wait_all_tasks_blocked()
    assert heard == []
    sleeper.wake()
    sleeper.wake()
    await wait_all_tasks_blocked()
    assert heard == ["woken"]


async def test_wake_call_before_a_task_sleeps_has_no_effect_on_the_task() -> None:
    sleeper = Sleeper()
    sleeper.wake()
    with trio.move_on_after(0) as scope:
        await sleeper.sleep()
    assert scope.cancelled_caught


async def test_task_can_sleep_on_a_sleeper_object_again_after_a_cancelled_sleep(nursery: trio.Nursery) -> None:
    sleeper, heard = Sleeper(), list[str]()

    async def sleep() -> None:
        with trio.move_on_after(0):
            await sleeper.sleep()
        heard.append("cancelled")
        await sleeper.sleep()
        heard.append("woken")

    nursery.start_soon(sleep)
    await wait_all_tasks_blocked()
    sleeper.wake()
    await wait_all_tasks_blocked()
    assert heard == ["cancelled", "woken"]


async def test_sleeper_object_refers_to_the_sleeping_task_until_the_task_is_woken_or_cancelled(
    nursery: trio.Nursery,
) -> None:
    sleeper, scope = Sleeper(), trio.CancelScope()

    async def sleep() -> None:
        with scope:
            await sleeper.sleep()

    assert sleeper.task is None
    nursery.start_soon(sleep)
    await wait_all_tasks_blocked()
    assert sleeper.task is not None
    sleeper.wake()
    assert sleeper.task is None
    await wait_all_tasks_blocked()
    scope = trio.CancelScope()
    nursery.start_soon(sleep)
    await wait_all_tasks_blocked()
    assert sleeper.task is not None
    scope.cancel()
    assert sleeper.task is None


async def test_second_trio_task_that_sleeps_on_one_sleeper_object_raises_assertion_error(nursery: trio.Nursery) -> None:
    sleeper = Sleeper()
    nursery.start_soon(sleeper.sleep)
    await wait_all_tasks_blocked()
    with pytest.raises(AssertionError, match="one task sleeps here"):
        await sleeper.sleep()
    sleeper.wake()


def wake_under_trio(wake: Callable[[], None]) -> None:
    async def main() -> None:
        await trio.lowlevel.checkpoint()
        wake()

    trio.run(main)


@pytest.mark.parametrize("run", [lambda wake: wake(), wake_under_trio], ids=["no run", "another run"])
async def test_wake_call_from_another_thread_raises_and_does_not_affect_a_later_wake_call(
    nursery: trio.Nursery, run: Callable[[Callable[[], None]], None]
) -> None:
    sleeper, heard = Sleeper(), list[str]()

    async def sleep() -> None:
        await sleeper.sleep()
        heard.append("woken")

    nursery.start_soon(sleep)
    await wait_all_tasks_blocked()
    task = sleeper.task
    with pytest.raises((RuntimeError, AssertionError)):
        await trio.to_thread.run_sync(run, sleeper.wake)
    assert sleeper.task is task
    sleeper.wake()
    await wait_all_tasks_blocked()
    assert heard == ["woken"]
