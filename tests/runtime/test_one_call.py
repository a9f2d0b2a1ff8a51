"""The mailbox of one request of ours, and calls of several requests. Limits and callbacks are in `test_calls.py`."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Progress, fail_after_silence
from trio_mcp.concurrency.bounded import Backlog
from trio_mcp.concurrency.time_limits import call_limits, fail_after_work
from trio_mcp.jsonrpc.messages import RequestId
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN
from trio_mcp.runtime.calls import Call, CallOutcome, RoundTrips
from trio_mcp.state.connection import ConnectionState


def call(method: str = "tools/call", deadline: float = math.inf) -> Call:
    request = ConnectionState("client").open_request(method, LATEST_MODERN)
    return Call(request, None, None, None, deadline)


def test_call_object_has_no_outcome_until_a_response_or_failure_arrives() -> None:
    mailbox = call()
    assert (mailbox.end, mailbox.ended_at, mailbox.on_notification) == (None, -math.inf, None)
    assert mailbox.segments == []


async def test_call_counts_as_time_limited_if_a_deadline_or_a_timeout_block_applies(
    autojump_clock: MockClock,
) -> None:
    assert not call().limited
    assert call(deadline=5).limited
    with fail_after_work(5):
        assert call().limited
        assert not call().wants_progress, "progress does not renew it"
    with fail_after_silence(5, maximum=10):
        assert call().limited
        assert call().wants_progress


async def test_progress_of_a_call_restarts_the_timeout_of_fail_after_silence_but_not_of_fail_after_work(
    autojump_clock: MockClock,
) -> None:
    with fail_after_silence(5, maximum=100), fail_after_work(50):
        mailbox = call()
        await trio.sleep(4)
        mailbox.receive_progress(Progress(1), 10)
        assert [limit.deadline for limit in call_limits()] == [9, 50]


@pytest.mark.parametrize(("method", "known"), [("tools/list", True), ("tools/call", False)])
async def test_arrival_time_of_a_response_is_recorded_only_for_cacheable_methods(
    autojump_clock: MockClock, method: str, known: bool
) -> None:
    mailbox = call(method)
    await trio.sleep(7)
    mailbox.settle(CallOutcome({}, None))
    await trio.sleep(7)
    assert mailbox.ended_at == (7 if known else -math.inf)


async def test_task_that_waits_for_a_call_runs_the_progress_callbacks(
    autojump_clock: MockClock,
) -> None:
    told, ends = list[float](), list[CallOutcome]()
    request = ConnectionState("client").open_request("tools/call", LATEST_LEGACY)

    def tell(progress: Progress) -> None:
        told.append(progress.progress)

    mailbox = Call(request, tell, Backlog(10, 1000))

    async def wait() -> None:
        ends.append(await mailbox.outcome())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        mailbox.receive_progress(Progress(1), 10)
        await wait_all_tasks_blocked()
        assert (told, ends) == ([1], [])
        end = CallOutcome({}, None)
        mailbox.settle(end)
        await wait_all_tasks_blocked()
        assert ends == [end]


def test_call_cancelled_while_it_awaits_no_reply_sends_no_cancel() -> None:
    cancels = list[tuple[RequestId, BaseException]]()
    trips = RoundTrips(lambda *told: cancels.append(told))
    assert (trips.asked, trips.received) == (None, -math.inf)
    trips.cancel(LookupError())
    assert cancels == []


@pytest.mark.parametrize("asked", [3, 0, ""])
def test_call_cancelled_while_it_awaits_the_reply_to_its_retry_sends_one_cancel(asked: RequestId) -> None:
    cancels = list[tuple[RequestId, BaseException]]()
    trips = RoundTrips(lambda *told: cancels.append(told))
    trips.asked, error = asked, LookupError()
    trips.cancel(error)
    trips.cancel(LookupError())
    assert cancels == [(asked, error)]
