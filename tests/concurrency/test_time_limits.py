"""Time limits that restart on progress or can be paused. Timeouts of calls have their own tests."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock

from trio_mcp.concurrency.time_limits import (
    HandlerLimit,
    TimeLimit,
    call_limits,
    fail_after_silence,
    fail_after_work,
    latest_deadline,
)


def only_limit() -> TimeLimit:
    (limit,) = call_limits()
    return limit


async def test_time_limit_raises_too_slow_error_after_the_given_seconds(autojump_clock: MockClock) -> None:
    for limited in (fail_after_work(5), fail_after_silence(5, maximum=9)):
        begun = trio.current_time()
        with pytest.raises(trio.TooSlowError), limited:
            await trio.sleep_forever()
        assert trio.current_time() == begun + 5


async def test_with_block_that_ends_within_its_time_limit_is_not_affected(autojump_clock: MockClock) -> None:
    with fail_after_work(5) as scope:
        await trio.sleep(4)
    assert not scope.cancelled_caught
    with pytest.raises(LookupError), fail_after_work(5):
        raise LookupError
    with fail_after_silence(5, maximum=9) as scope:
        await trio.sleep(4)
    assert not scope.cancelled_caught


async def test_outer_cancel_is_not_reported_as_the_expiry_of_an_inner_time_limit(autojump_clock: MockClock) -> None:
    with trio.move_on_after(1) as outside, fail_after_work(5), fail_after_silence(5, maximum=9):
        await trio.sleep_forever()
    assert outside.cancelled_caught


async def test_progress_restarts_fail_after_silence_but_not_fail_after_work(autojump_clock: MockClock) -> None:
    with fail_after_silence(5, maximum=100), fail_after_work(50):
        silence, work = call_limits()
        assert (silence.restarts_on_progress, work.restarts_on_progress) == (True, False)
        await trio.sleep(4)
        silence.restart()
        work.restart()
        assert (silence.deadline, work.deadline) == (9, 50)


async def test_progress_and_pauses_do_not_extend_a_time_limit_beyond_the_given_maximum(
    autojump_clock: MockClock,
) -> None:
    with fail_after_silence(5, maximum=7):
        limit = only_limit()
        await trio.sleep(4)
        limit.restart()
        assert limit.deadline == 7
        limit.pause()
        assert limit.deadline == 7
        limit.resume()
        assert limit.deadline == 7


async def test_time_limit_paused_twice_continues_after_it_is_resumed_twice(autojump_clock: MockClock) -> None:
    with fail_after_work(5):
        limit = only_limit()
        await trio.sleep(2)
        limit.pause()
        limit.pause()
        assert limit.deadline == math.inf
        await trio.sleep(100)
        limit.resume()
        assert limit.deadline == math.inf
        await trio.sleep(100)
        limit.resume()
        assert limit.deadline == 205
        with pytest.raises(trio.TooSlowError), fail_after_work(1):
            await trio.sleep_forever()
        limit.pause()
        await trio.sleep(10)
        limit.resume()
        assert limit.deadline == 215


async def test_progress_during_a_pause_restarts_the_time_limit_at_the_end_of_the_pause(
    autojump_clock: MockClock,
) -> None:
    with fail_after_silence(5, maximum=100):
        limit = only_limit()
        await trio.sleep(3)
        limit.pause()
        await trio.sleep(10)
        limit.restart()
        assert limit.deadline == 100
        limit.resume()
        assert limit.deadline == 18


async def test_time_limit_that_has_expired_is_not_extended_by_a_pause(autojump_clock: MockClock) -> None:
    with fail_after_work(5) as scope:
        limit = only_limit()
        with trio.CancelScope(shield=True):
            await trio.sleep(8)
        limit.pause()
        limit.resume()
        assert limit.deadline == 8
        scope.deadline = math.inf


async def test_list_of_time_limits_around_a_call_has_the_outermost_limit_first(autojump_clock: MockClock) -> None:
    assert call_limits() == ()
    with fail_after_silence(5, maximum=10):
        outer = only_limit()
        with fail_after_work(6):
            assert call_limits()[0] is outer
            assert [limit.deadline for limit in call_limits()] == [5, 6]
        assert call_limits() == (outer,)
    assert call_limits() == ()


async def test_time_limit_of_a_with_block_does_not_apply_to_tasks_that_continue_after_it(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[TimeLimit, ...]] = []

    async def live_on() -> None:
        seen.append(call_limits())
        await trio.sleep(1)
        seen.append(call_limits())

    async with trio.open_nursery() as nursery:
        with fail_after_work(5):
            limit = only_limit()
            nursery.start_soon(live_on)
            await trio.testing.wait_all_tasks_blocked()
    assert seen == [(limit,), ()]


async def test_latest_possible_deadline_of_a_call_respects_the_maximum_of_each_enclosing_time_limit(
    autojump_clock: MockClock,
) -> None:
    assert latest_deadline() == math.inf
    with trio.fail_after(50):
        await trio.lowlevel.checkpoint()
        assert latest_deadline() == 50
        with fail_after_silence(5, maximum=20):
            assert latest_deadline() == 20
            with fail_after_silence(6, maximum=30):
                assert latest_deadline() == 20
            with trio.fail_after(5):
                await trio.lowlevel.checkpoint()
                assert latest_deadline() == 20, "the limit may move behind it, and the scope stays"
            with trio.fail_after(4):
                await trio.lowlevel.checkpoint()
                assert latest_deadline() == 4
        with fail_after_work(5):
            assert latest_deadline() == 50
            with trio.fail_after(60):
                await trio.lowlevel.checkpoint()
                assert latest_deadline() == 50
    with fail_after_work(5):
        assert latest_deadline() == math.inf


@pytest.mark.parametrize("seconds", [-1, math.nan])
async def test_negative_or_nan_time_limit_raises_value_error(seconds: float) -> None:
    with pytest.raises(ValueError, match="a time limit must not be negative"), fail_after_work(seconds):
        pytest.fail("entered")
    with pytest.raises(ValueError, match="a time limit must not be negative"), fail_after_silence(seconds, maximum=1):
        pytest.fail("entered")
    with pytest.raises(ValueError, match="a time limit must not be negative"), fail_after_silence(1, maximum=seconds):
        pytest.fail("entered")


async def test_time_limit_of_zero_expires_immediately(autojump_clock: MockClock) -> None:
    for limited in (fail_after_work(0), fail_after_silence(0, maximum=5), fail_after_silence(5, maximum=0)):
        with pytest.raises(trio.TooSlowError), limited:
            await trio.sleep_forever()
    assert trio.current_time() == 0


async def test_pause_of_an_inner_handler_time_limit_also_pauses_the_outer_time_limit(
    autojump_clock: MockClock,
) -> None:
    begun = trio.current_time()
    outer = HandlerLimit(5)
    inner = HandlerLimit(5, outer)
    with inner.paused():
        await trio.sleep(100)
    assert (outer.deadline, inner.deadline) == (begun + 105, begun + 105)
    with outer.paused():
        await trio.sleep(10)
    assert (outer.deadline, inner.deadline) == (begun + 115, begun + 105)
