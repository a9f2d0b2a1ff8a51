"""How long the last replies may take."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from trio_mcp.runtime.outbox import LEAST_FLUSH, LastFlush


async def seconds_of(flush: LastFlush) -> float:
    """How long a flush lasts that never ends by itself."""
    begun = trio.current_time()
    await flush.run(trio.sleep_forever)
    return trio.current_time() - begun


async def test_last_flush_at_shutdown_returns_when_all_messages_are_sent(autojump_clock: MockClock) -> None:
    begun, done = trio.current_time(), list[str]()

    async def flushed() -> None:
        await trio.sleep(3)
        done.append("flushed")

    await LastFlush().run(flushed)
    assert (trio.current_time() - begun, done) == (3, ["flushed"])


async def test_last_flush_at_shutdown_ends_when_the_drain_time_is_over(autojump_clock: MockClock) -> None:
    flush = LastFlush()
    flush.end_at(trio.current_time() + 9)
    flush.end_at(trio.current_time() + 5)
    flush.end_at(trio.current_time() + 7)
    assert await seconds_of(flush) == 5


async def test_last_flush_at_shutdown_may_take_400_ms_even_if_the_drain_time_is_already_over(
    autojump_clock: MockClock,
) -> None:
    flush = LastFlush()
    flush.end_at(trio.current_time() - 5)
    assert await seconds_of(flush) == LEAST_FLUSH == 0.4


async def test_last_flush_of_an_immediate_shutdown_ends_after_100_ms(autojump_clock: MockClock) -> None:
    flush = LastFlush()
    flush.end_at(trio.current_time() + 5)
    flush.hurry()
    await trio.sleep(50)
    assert round(await seconds_of(flush), 6) == 0.1


async def test_immediate_shutdown_shortens_a_last_flush_that_has_started(autojump_clock: MockClock) -> None:
    flush, begun = LastFlush(), trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flush.run, trio.sleep_forever)
        await trio.sleep(10)
        flush.hurry()
    assert round(trio.current_time() - begun, 6) == 10.1
