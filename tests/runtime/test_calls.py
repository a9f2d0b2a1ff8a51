from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import Sequencer, wait_all_tasks_blocked

from trio_mcp import ConnectionLost, Progress, fail_after_silence
from trio_mcp.concurrency.bounded import Backlog
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.runtime.calls import Call, CallOutcome, OnProgress
from trio_mcp.state.connection import ConnectionState


def call(on_progress: OnProgress | None = None, bound: int = 100) -> Call:
    request = ConnectionState("client").open_request("tools/call", LATEST_LEGACY)
    return Call(request, on_progress, Backlog(bound, 1_000_000))


async def test_task_that_waits_for_a_call_gets_the_outcome_passed_to_the_settle_method() -> None:
    mailbox, end = call(), CallOutcome({"content": []}, None, 3)
    mailbox.settle(end)
    assert await mailbox.outcome() is end


async def test_task_that_waits_for_a_call_continues_when_the_settle_method_of_the_call_is_called() -> None:
    mailbox, sequence = call(), Sequencer()
    end = CallOutcome(None, ConnectionLost("gone"))
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            assert await mailbox.outcome() is end
            async with sequence(1):
                pass

        nursery.start_soon(wait)
        async with sequence(0):
            await wait_all_tasks_blocked()
            mailbox.settle(end)


async def test_progress_callbacks_run_in_order_before_the_call_returns() -> None:
    told: list[float] = []

    async def tell(progress: Progress) -> None:
        await trio.lowlevel.checkpoint()
        told.append(progress.progress)

    mailbox = call(tell)
    for value in (1, 2, 3):
        mailbox.receive_progress(Progress(value), 10)
    mailbox.settle(CallOutcome("end", None))
    assert (await mailbox.outcome()).result == "end"
    assert told == [1, 2, 3]


async def test_oldest_queued_progress_is_dropped_beyond_the_limit() -> None:
    told: list[Progress] = []
    mailbox = call(told.append, bound=2)
    for value in (1, 2, 3, 4):
        mailbox.receive_progress(Progress(value), 10)
    mailbox.settle(CallOutcome(None, None))
    await mailbox.outcome()
    assert told == [Progress(3), Progress(4)]


async def test_exception_in_a_progress_callback_does_not_change_the_outcome_of_the_call() -> None:
    def fail(_: Progress) -> None:
        raise LookupError("callback")

    mailbox = call(fail)
    mailbox.receive_progress(Progress(1), 10)
    with pytest.raises(LookupError, match="callback"):
        await mailbox.outcome()


async def test_call_requests_progress_only_with_a_progress_callback_or_inside_fail_after_silence() -> None:
    assert not call().wants_progress
    assert call(lambda _: None).wants_progress
    with fail_after_silence(1, maximum=2):
        assert call().wants_progress
    assert not call().wants_progress


# fail_after_silence (PT012: what happens inside the limit is what is tested)


async def test_fail_after_silence_raises_after_the_given_seconds(autojump_clock: object) -> None:
    begun = trio.current_time()
    with pytest.raises(trio.TooSlowError), fail_after_silence(5, maximum=100):
        await trio.sleep_forever()
    assert trio.current_time() == pytest.approx(begun + 5)


async def test_progress_of_a_call_inside_fail_after_silence_restarts_the_timeout_of_the_block(
    autojump_clock: object,
) -> None:
    begun = trio.current_time()
    with pytest.raises(trio.TooSlowError), fail_after_silence(5, maximum=100):
        mailbox = call()
        for _ in range(3):
            await trio.sleep(4)
            mailbox.receive_progress(Progress(1), 10)
        await trio.sleep_forever()
    assert trio.current_time() == pytest.approx(begun + 17)


async def test_fail_after_silence_never_exceeds_its_maximum(autojump_clock: object) -> None:
    begun = trio.current_time()
    with pytest.raises(trio.TooSlowError), fail_after_silence(5, maximum=10):
        mailbox = call()
        while True:
            await trio.sleep(1)
            mailbox.receive_progress(Progress(1), 10)
    assert trio.current_time() == pytest.approx(begun + 10)


async def test_fail_after_silence_raises_after_its_maximum_if_the_maximum_is_below_the_seconds(
    autojump_clock: object,
) -> None:
    begun = trio.current_time()
    with pytest.raises(trio.TooSlowError), fail_after_silence(5, maximum=1):
        await trio.sleep_forever()
    assert trio.current_time() == pytest.approx(begun + 1)


async def test_progress_of_one_call_restarts_the_timeouts_of_all_enclosing_fail_after_silence_blocks(
    autojump_clock: object,
) -> None:
    begun = trio.current_time()
    with fail_after_silence(10, maximum=100) as outer:
        with pytest.raises(trio.TooSlowError), fail_after_silence(3, maximum=100):
            mailbox = call()
            await trio.sleep(2)
            mailbox.receive_progress(Progress(1), 10)
            await trio.sleep_forever()
        assert trio.current_time() == pytest.approx(begun + 5)
        assert outer.deadline == pytest.approx(begun + 12)


async def test_progress_of_a_call_started_before_fail_after_silence_does_not_restart_its_timeout(
    autojump_clock: object,
) -> None:
    begun = trio.current_time()
    mailbox = call()
    with pytest.raises(trio.TooSlowError), fail_after_silence(5, maximum=100):
        await trio.sleep(3)
        mailbox.receive_progress(Progress(1), 10)
        await trio.sleep_forever()
    assert trio.current_time() == pytest.approx(begun + 5)


async def test_block_inside_fail_after_silence_that_ends_in_time_does_not_raise(autojump_clock: object) -> None:
    with fail_after_silence(5, maximum=100) as scope:
        await trio.sleep(4)
    assert not scope.cancelled_caught
    await trio.sleep(10)


@pytest.mark.parametrize(("seconds", "maximum"), [(-1, 5), (5, -1), (float("nan"), 5), (5, float("nan"))])
async def test_fail_after_silence_raises_value_error_for_an_invalid_time(seconds: float, maximum: float) -> None:
    with pytest.raises(ValueError, match="time limit"), fail_after_silence(seconds, maximum=maximum):
        pytest.fail("no such limit")


def test_call_outcome_created_without_a_notification_count_has_the_count_zero() -> None:
    end: Any = CallOutcome(1, None)
    assert end.notifications_before == 0
