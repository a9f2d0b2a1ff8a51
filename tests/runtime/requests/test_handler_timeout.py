"""The limit of a handler's time, which stands still while a user is asked."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from trio_mcp.concurrency.time_limits import HandlerLimit


async def test_handler_timeout_cancels_the_cancel_scope_given_as_argument(autojump_clock: MockClock) -> None:
    limit = HandlerLimit(5)
    assert limit.deadline == trio.current_time() + 5
    with limit.scope:
        await trio.sleep_forever()
    assert trio.current_time() == 5


async def test_handler_timeout_expires_after_the_given_seconds(autojump_clock: MockClock) -> None:
    limit = HandlerLimit(5)
    await limit.wait_until_over()
    assert trio.current_time() == 5
    await limit.wait_until_over()
    assert trio.current_time() == 5


async def test_handler_timeout_does_not_include_the_time_of_elicitations(
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


async def test_handler_timeout_continues_after_a_failed_elicitation(autojump_clock: MockClock) -> None:
    limit = HandlerLimit(5)
    with pytest.raises(LookupError), limit.paused():
        await trio.sleep(10)
        raise LookupError
    assert limit.deadline == 15
