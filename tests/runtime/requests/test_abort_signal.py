"""Whether and why a request was cancelled, as the handler, its threads and others learn of it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
import trio
from tests.state.peers import accepted, server_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.concurrency.fair_share import Caller
from trio_mcp.concurrency.threads import current_run
from trio_mcp.concurrency.wakeups import Alarms
from trio_mcp.jsonrpc.messages import Request
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.runtime.cancellation import DEADLINE_PASSED, CancelCause, Cancellation
from trio_mcp.runtime.exchange import Exchange
from trio_mcp.runtime.outbox import Outbox
from trio_mcp.runtime.peer import UNKNOWN_PEER
from trio_mcp.runtime.requests.admission import Ticket
from trio_mcp.runtime.requests.scope import RequestScope

THEIRS = Cancellation(CancelCause.PEER, "enough", 3)
LATER = Cancellation(CancelCause.SHUTDOWN, None, 4)
OWN = Cancellation(CancelCause.REPLAY, "again", 5)


def a_request() -> RequestScope:
    """Return a request of which only the signal counts."""
    run = current_run() if trio.lowlevel.in_trio_run() else None
    state, runner = server_of(LATEST_LEGACY), SimpleNamespace(trio_run=run)
    request = accepted(state.receive(Request(1, "tools/call", {"name": "x"})))
    exchange, ticket = Exchange(state, Outbox(1000), UNKNOWN_PEER), Ticket(Caller(), 1, streams=False)
    return RequestScope(runner, exchange, request, ticket)  # pyright: ignore[reportArgumentType]


async def run(abort: RequestScope, handler: Callable[[], Awaitable[None]]) -> bool:
    """Run ``handler`` as a request is run, and return whether the signal ended it."""
    async with trio.open_nursery() as nursery:
        abort.start(nursery)
        await handler()
        abort.handler_returned()
    return abort.leave()


async def test_new_request_starts_without_a_cancellation_or_deadline() -> None:
    abort = a_request()
    assert (abort.is_cancelled, abort.cancellation, abort.from_outside, abort.nursery) == (False, None, None, None)
    assert (abort.due, abort.is_overdue, abort.has_time_limit) == (math.inf, False, False)
    assert not abort.event.is_set()


async def test_request_cancellation_is_none_if_the_handler_was_not_cancelled() -> None:
    abort, nurseries = a_request(), list[trio.Nursery | None]()

    async def handler() -> None:
        nurseries.append(abort.nursery)

    assert not await run(abort, handler)
    assert nurseries[0] is not None
    assert (abort.nursery, abort.is_cancelled) == (None, False)
    assert not abort.leave(), "there is nothing to leave"


async def test_cancel_of_a_request_stops_its_handler_and_child_tasks_and_later_cancels_have_no_effect() -> None:
    abort, ended = a_request(), list[str | None]()

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            ended.append(cancelled.reason)
            raise

    async def handler() -> None:
        assert abort.nursery is not None
        abort.nursery.start_soon(wait)
        await wait()

    async with trio.open_nursery() as outer:
        results = list[bool]()

        async def both() -> None:
            results.append(await run(abort, handler))

        outer.start_soon(both)
        await wait_all_tasks_blocked()
        assert abort.cancel(THEIRS)
        assert not abort.cancel(LATER)
    assert (ended, results) == (["enough", "enough"], [True])
    assert abort.cancellation is abort.from_outside is THEIRS
    assert abort.is_cancelled


async def test_cancel_reason_passed_to_trio_is_never_empty() -> None:
    abort, reasons = a_request(), list[str | None]()

    async def handler() -> None:
        abort.cancel(LATER)
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            reasons.append(cancelled.reason)
            raise

    assert await run(abort, handler)
    assert reasons == ["shutdown"]


async def test_cancel_of_a_request_before_its_handler_runs_sets_the_cancellation_of_the_request() -> None:
    abort = a_request()
    assert abort.cancel(THEIRS)
    assert abort.cancellation is THEIRS


async def test_handler_cancelled_by_the_application_does_not_cancel_the_request() -> None:
    abort = a_request()

    async def handler() -> None:
        abort.cancel_inside(OWN)
        await trio.lowlevel.checkpoint()

    assert await run(abort, handler)
    assert (abort.cancellation, abort.from_outside) == (OWN, None)
    assert abort.cancel(THEIRS), "the request may still be cancelled"
    assert abort.cancellation is THEIRS


# The deadline of the caller


async def test_request_deadline_cancels_the_handler(autojump_clock: MockClock) -> None:
    abort, alarms = a_request(), Alarms()

    async def handler() -> None:
        assert not abort.is_overdue
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        abort.set_deadline(alarms.set(5, lambda: None))
        assert abort.due == 5
        await trio.sleep(4)
        assert not abort.is_overdue
        assert await run(abort, handler)
        assert (trio.current_time(), abort.is_overdue) == (5, True)
        assert abort.cancellation == Cancellation(CancelCause.DEADLINE, DEADLINE_PASSED, 5)
        assert abort.from_outside is None
        nursery.cancel_scope.cancel()


async def test_later_request_deadline_replaces_the_earlier_deadline(autojump_clock: MockClock) -> None:
    abort, alarms, rung = a_request(), Alarms(), list[float]()

    def ring() -> None:
        rung.append(trio.current_time())

    async def handler() -> None:
        abort.set_deadline(alarms.set(9, ring))
        assert abort.due == 9
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        abort.set_deadline(alarms.set(5, ring))
        assert await run(abort, handler)
        assert trio.current_time() == 9
        abort.set_deadline(alarms.set(20, ring))
        abort.set_deadline(None)
        assert (abort.due, abort.is_overdue) == (math.inf, False)
        await trio.sleep(50)
        assert rung == [9]
        nursery.cancel_scope.cancel()


async def test_handler_is_not_cancelled_after_its_request_deadline_is_removed(autojump_clock: MockClock) -> None:
    abort, alarms = a_request(), Alarms()

    async def handler() -> None:
        abort.set_deadline(None)
        await trio.sleep(100)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        abort.set_deadline(alarms.set(5, lambda: None))
        assert not await run(abort, handler)
        nursery.cancel_scope.cancel()


# The handler's own scope


async def test_handler_that_cancels_its_own_scope_sees_cancel_cause_parent(
    autojump_clock: MockClock,
) -> None:
    for reason in ("enough", None):
        abort = a_request()
        await trio.sleep(7)

        async def handler(abort: RequestScope = abort, reason: str | None = reason) -> None:
            assert abort.nursery is not None
            abort.nursery.cancel_scope.cancel(reason=reason)
            assert abort.cancellation == Cancellation(CancelCause.PARENT, reason, trio.current_time())
            await trio.lowlevel.checkpoint()

        assert await run(abort, handler)
        assert abort.cancellation == Cancellation(CancelCause.PARENT, reason, trio.current_time())
        await trio.sleep(5)
        assert abort.cancellation.at == trio.current_time() - 5, "it is noted once"


async def test_reason_that_trio_generates_for_a_cancelled_scope_is_not_used_as_cancel_reason(
    autojump_clock: MockClock,
) -> None:
    abort, told = a_request(), list[Cancellation | None]()

    async def handler() -> None:
        assert abort.nursery is not None
        abort.nursery.cancel_scope.deadline = 5
        try:
            await trio.sleep_forever()
        finally:
            told.append(abort.cancellation)

    assert await run(abort, handler)
    assert told == [Cancellation(CancelCause.PARENT, None, 5)]


# The event


async def test_cancelled_event_of_a_request_is_set_by_any_cancel_even_before_the_handler_reads_the_event() -> None:
    for cancel in (lambda abort: abort.cancel(THEIRS), lambda abort: abort.cancel_inside(OWN)):
        early, late = a_request(), a_request()
        event = early.event
        assert not event.is_set()
        cancel(early)
        cancel(late)
        assert event.is_set()
        assert early.event is event
        assert late.event.is_set()


async def test_cancelled_event_is_set_if_the_handler_scope_is_cancelled() -> None:
    for inside in (True, False):
        abort, seen = a_request(), list[bool]()

        async def handler(abort: RequestScope = abort, seen: list[bool] = seen) -> None:
            event = abort.event
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await wait_all_tasks_blocked()
                seen.append(event.is_set())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, abort, handler)
            await wait_all_tasks_blocked()
            assert abort.nursery is not None
            (abort.nursery if inside else nursery).cancel_scope.cancel()
        assert seen == [inside]


async def test_cancelled_event_stays_unset_if_the_handler_that_reads_the_event_returns_normally() -> None:
    abort = a_request()

    async def handler() -> None:
        assert abort.event is abort.event
        assert abort.nursery is not None
        assert len(abort.nursery.child_tasks) == 1
        await wait_all_tasks_blocked()

    assert not await run(abort, handler)
    assert not abort.event.is_set()
    assert not abort.is_cancelled


async def test_trio_task_that_watches_the_cancelled_event_ends_when_the_handler_returns() -> None:
    abort = a_request()

    async def child() -> None:
        await wait_all_tasks_blocked()
        assert not abort.event.is_set()
        assert abort.nursery is not None
        assert len(abort.nursery.child_tasks) == 1

    async def handler() -> None:
        assert abort.nursery is not None
        abort.nursery.start_soon(child)

    assert not await run(abort, handler)


async def test_handler_thread_can_read_the_cancellation_of_its_request() -> None:
    abort = a_request()

    async def handler() -> None:
        assert await trio.to_thread.run_sync(lambda: (abort.is_cancelled, abort.event.is_set())) == (False, False)
        abort.cancel_inside(OWN)
        with trio.CancelScope(shield=True):
            told = await trio.to_thread.run_sync(lambda: (abort.is_cancelled, abort.cancellation))
        assert told == (True, OWN)
        assert abort.event.is_set()

    await run(abort, handler)


# The time limit of a tool


async def test_handler_that_exceeds_a_timeout_block_sees_cancel_cause_deadline(
    autojump_clock: MockClock,
) -> None:
    abort, told = a_request(), list[Cancellation | None]()

    async def handler() -> None:
        event = abort.event
        with abort.move_on_after(5):
            assert abort.has_time_limit
            try:
                await trio.sleep_forever()
            finally:
                told.append(abort.cancellation)
        assert not abort.has_time_limit
        assert event.is_set()

    assert not await run(abort, handler), "the nursery was not cancelled"
    expected = Cancellation(CancelCause.DEADLINE, "the time limit of the tool was over", 5)
    assert told == [expected]
    assert (abort.cancellation, abort.from_outside, trio.current_time()) == (expected, None, 5)


async def test_handler_that_finishes_within_its_timeout_is_not_affected(autojump_clock: MockClock) -> None:
    abort = a_request()

    async def handler() -> None:
        with abort.move_on_after(5):
            await trio.sleep(4)
        await trio.sleep(4)

    assert not await run(abort, handler)
    assert (abort.cancellation, abort.has_time_limit, trio.current_time()) == (None, False, 8)


async def test_handler_thread_sees_that_the_timeout_expired(autojump_clock: MockClock) -> None:
    abort, seen = a_request(), list[bool]()

    async def handler() -> None:
        with abort.move_on_after(5), trio.CancelScope(shield=True):
            await trio.sleep(6)
            autojump_clock.autojump_threshold = math.inf
            seen.append(await trio.to_thread.run_sync(lambda: abort.is_cancelled))

    await run(abort, handler)
    assert seen == [True]


async def test_handler_timeout_is_paused_during_elicitation(autojump_clock: MockClock) -> None:
    abort = a_request()

    async def asked() -> str:
        await trio.sleep(100)
        return "yes"

    async def handler() -> None:
        with abort.move_on_after(5):
            await trio.sleep(3)
            assert await abort.standing_still(asked()) == "yes"
            await trio.sleep_forever()

    await run(abort, handler)
    assert trio.current_time() == 105
    assert abort.cancellation is not None
    assert abort.cancellation.at == 105


async def test_cancel_by_the_client_takes_precedence_over_an_expired_handler_timeout(autojump_clock: MockClock) -> None:
    abort = a_request()

    async def handler() -> None:
        with abort.move_on_after(5):
            await trio.sleep_forever()
        abort.cancel(THEIRS)
        assert abort.cancellation is THEIRS

    await run(abort, handler)


async def test_handler_timeout_raises_if_no_handler_runs() -> None:
    with pytest.raises(AssertionError, match="inside the nursery"), a_request().move_on_after(5):
        pytest.fail("entered")
