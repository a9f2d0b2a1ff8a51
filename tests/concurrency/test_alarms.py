from __future__ import annotations

import gc
import math
import weakref
from contextvars import ContextVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.concurrency.wakeups import Alarms


async def rung(*dues: float, stop: tuple[int, ...] = (), late: tuple[float, ...] = ()) -> list[float]:
    """When each rings; those of ``late`` are set a second later."""
    seen: list[float] = []
    alarms, start = Alarms(), trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)

        def ring() -> None:
            seen.append(trio.current_time() - start)

        set_now = [alarms.set(start + due, ring) for due in dues]
        for place in stop:
            set_now[place].stop()
            set_now[place].stop()
        await trio.sleep(1)
        for due in late:
            alarms.set(start + due, ring)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    return seen


async def test_timer_callbacks_run_in_order_of_their_due_time(autojump_clock: MockClock) -> None:
    assert await rung(5, 3, 9, 3) == [3, 3, 5, 9]


async def test_stopped_timer_does_not_call_its_callback(autojump_clock: MockClock) -> None:
    assert await rung(5, 3, 9, stop=(1,)) == [5, 9]


async def test_timer_set_last_with_the_earliest_time_calls_its_callback_first(autojump_clock: MockClock) -> None:
    assert await rung(50, late=(2, 70, 40)) == [2, 40, 50, 70]


async def test_timer_that_is_set_after_an_idle_period_calls_its_callback(autojump_clock: MockClock) -> None:
    assert await rung(0.5, late=(60,)) == [0.5, 60]


async def test_timer_that_is_already_due_calls_its_callback_immediately(autojump_clock: MockClock) -> None:
    assert await rung(-5, 0) == [0, 0]


async def test_timer_set_for_an_infinite_time_is_not_stored(autojump_clock: MockClock) -> None:
    assert await rung(math.inf, 3) == [3]
    assert len(Alarms()) == 0


async def test_timer_is_inactive_after_it_has_called_its_callback(autojump_clock: MockClock) -> None:
    alarms, seen = Alarms(), list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        alarm = alarms.set(trio.current_time() + 2, lambda: seen.append("rung"))
        assert alarm.is_set
        await trio.sleep(1.9)
        assert seen == []
        await trio.sleep(50)
        assert seen == ["rung"]
        assert not alarm.is_set
        alarm.stop()
        nursery.cancel_scope.cancel()


async def test_timer_callback_can_set_and_stop_other_timers(autojump_clock: MockClock) -> None:
    alarms, seen, start = Alarms(), list[float](), trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)

        def again() -> None:
            seen.append(trio.current_time() - start)
            second.stop()
            if len(seen) < 3:
                alarms.set(trio.current_time() + 10, again)

        alarms.set(start + 1, again)
        second = alarms.set(start + 2, lambda: seen.append(-1))
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert seen == [1, 11, 21]


async def test_stopped_timers_are_removed_from_memory() -> None:
    alarms = Alarms()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        for number in range(10_000):
            alarms.set(trio.current_time() + 10_000 + number, lambda: None).stop()
        assert len(alarms) < 100
        nursery.cancel_scope.cancel()


async def test_removal_of_many_stopped_timers_does_not_affect_active_timers(autojump_clock: MockClock) -> None:
    assert await rung(*[50.0] * 200, 60, 70, stop=tuple(range(200))) == [60, 70]


@pytest.mark.parametrize("how", ["stop", "ring"])
async def test_stopped_or_expired_timer_releases_its_callback(how: str, autojump_clock: MockClock) -> None:
    class Owner:
        def ring(self) -> None:
            pass

    alarms, owner = Alarms(), Owner()
    watched = weakref.ref(owner)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        alarm = alarms.set(trio.current_time() + 5, owner.ring)
        alarms.set(trio.current_time() + 500, int)
        del owner
        gc.disable()
        try:
            if how == "stop":
                alarm.stop()
            else:
                await trio.sleep(10)
            assert watched() is None
        finally:
            gc.enable()
        nursery.cancel_scope.cancel()


async def test_timer_callbacks_run_with_the_context_variables_of_the_timer_service(autojump_clock: MockClock) -> None:
    variable, seen = ContextVar[str]("variable", default="none"), list[str]()
    alarms = Alarms()
    async with trio.open_nursery() as nursery:
        variable.set("given")
        nursery.start_soon(alarms.run)
        variable.set("later")
        alarms.set(trio.current_time(), lambda: seen.append(variable.get()))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert seen == ["given"]
