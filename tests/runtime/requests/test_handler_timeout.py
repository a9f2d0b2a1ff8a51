"""The limit of a handler's time, which stands still while a user is asked."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from trio_mcp.concurrency.time_limits import HandlerLimit


async def test_the_limit_ends_what_runs_in_its_scope(autojump_clock: MockClock) -> None:
    limit = HandlerLimit(5)
    assert limit.deadline == trio.current_time() + 5
    with limit.scope:
        await trio.sleep_forever()
    assert trio.current_time() == 5


async def test_it_is_passed_when_its_time_is_over(autojump_clock: MockClock) -> None:
    limit = HandlerLimit(5)
    await limit.wait_until_over()
    assert trio.current_time() == 5
    await limit.wait_until_over()
    assert trio.current_time() == 5


async def test_the_time_of_a_user_does_not_count_and_whoever_waits_for_the_end_waits_so_much_longer(
    autojump_clock: MockClock,
) -> None:
    limit, seen = HandlerLimit(5), list[float]()

    async def watch() -> None:
        await limit.wait_until_over()
        seen.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        with limit.scope:
            for _ in range(2):
                await trio.sleep(2)
                with limit.paused():
                    assert limit.deadline > 1_000_000
                    await trio.sleep(100)
            assert limit.deadline == 205
            await trio.sleep_forever()
        assert trio.current_time() == 205
    assert seen == [205]


async def test_the_clock_goes_on_when_the_user_was_asked_in_vain(autojump_clock: MockClock) -> None:
    limit = HandlerLimit(5)
    with pytest.raises(LookupError), limit.paused():
        await trio.sleep(10)
        raise LookupError
    assert limit.deadline == 15
