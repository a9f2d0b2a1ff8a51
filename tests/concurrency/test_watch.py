from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.concurrency.wakeups import ChangeSignal


async def test_store_is_polled_immediately_after_a_signal_that_it_changed(
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


async def test_store_is_polled_again_if_a_signal_that_it_changed_arrives_during_a_poll(
    autojump_clock: MockClock,
) -> None:
    watch = ChangeSignal(1000)
    watch.notify()
    watch.notify()
    await watch.next_poll()
    assert trio.current_time() == 0


async def test_store_is_polled_at_the_usual_interval_after_a_poll_that_a_signal_triggered(
    autojump_clock: MockClock,
) -> None:
    watch = ChangeSignal(5)
    watch.notify()
    await watch.next_poll()
    await watch.next_poll()
    assert trio.current_time() == 5
