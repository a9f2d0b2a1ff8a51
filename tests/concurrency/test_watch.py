from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.concurrency.wakeups import ChangeSignal


async def test_signal_that_a_store_changed_immediately_triggers_a_poll(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    watch, looks = ChangeSignal(1000), list[float]()

    async def read() -> None:
        await watch.next_poll()
        looks.append(trio.current_time())

    nursery.start_soon(read)
    await trio.sleep(3)
    watch.notify("its id")
    await wait_all_tasks_blocked()
    assert looks == [3]


async def test_signal_that_a_store_changed_during_a_poll_triggers_another_poll(autojump_clock: MockClock) -> None:
    watch = ChangeSignal(1000)
    watch.notify()
    watch.notify()
    await watch.next_poll()
    assert trio.current_time() == 0


async def test_after_a_poll_triggered_by_a_signal_the_next_poll_follows_after_the_usual_interval(
    autojump_clock: MockClock,
) -> None:
    watch = ChangeSignal(5)
    watch.notify()
    await watch.next_poll()
    await watch.next_poll()
    assert trio.current_time() == 5
