from __future__ import annotations

import math
from contextvars import copy_context
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from trio_mcp import fail_after_silence
from trio_mcp.concurrency.time_limits import fail_after_work, last_deadline
from trio_mcp.runtime.remaining_time import REMAINING_MS, due_of, with_remaining
from trio_mcp.runtime.requests.deadlines import Deadlines


@attrs.define(eq=False)
class FakeScope:
    """Of a request, only what `Deadlines` looks at."""

    due: float
    deadline_number: int = -1


async def expired(*dues: float, forget: tuple[int, ...] = (), late: tuple[float, ...] = ()) -> list[float]:
    """When each expires; those of ``late`` are added a second later."""
    seen: list[float] = []
    deadlines = Deadlines(lambda scope: seen.append(trio.current_time() - start))
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        deadlines.task.start_in(nursery, copy_context())
        scopes: list[Any] = [FakeScope(start + due) for due in dues]
        for scope in scopes:
            deadlines.add(scope)
        for place in forget:
            deadlines.forget(scopes[place])
            deadlines.forget(scopes[place])
        await trio.sleep(1)
        for due in late:
            scope: Any = FakeScope(start + due)
            deadlines.add(scope)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    return seen


async def test_each_request_expires_when_it_is_due(autojump_clock: MockClock) -> None:
    assert await expired(5, 3, 9, 3) == [3, 3, 5, 9]


async def test_what_has_ended_does_not_expire(autojump_clock: MockClock) -> None:
    assert await expired(5, 3, 9, forget=(1,)) == [5, 9]


async def test_an_earlier_one_may_come_later(autojump_clock: MockClock) -> None:
    assert await expired(50, late=(2, 70, 40)) == [2, 40, 50, 70]


async def test_what_has_passed_already_expires_at_once(autojump_clock: MockClock) -> None:
    assert await expired(-5, 0) == [0, 0]


async def test_requests_that_ended_leave_nothing_behind() -> None:
    deadlines = Deadlines(lambda scope: None)
    async with trio.open_nursery() as nursery:
        deadlines.task.start_in(nursery, copy_context())
        for number in range(10_000):
            scope: Any = FakeScope(trio.current_time() + 10_000 + number)
            deadlines.add(scope)
            deadlines.forget(scope)
        assert len(deadlines) < 100
        nursery.cancel_scope.cancel()


async def test_the_time_that_is_left_travels_in_whole_milliseconds(autojump_clock: MockClock) -> None:
    now = trio.current_time()
    assert with_remaining("tools/call", {"name": "x"}, now + 1.2345) == {"name": "x", "_meta": {REMAINING_MS: 1235}}
    assert with_remaining("tools/call", None, now - 5) == {"_meta": {REMAINING_MS: 0}}
    assert with_remaining("tools/call", {}, -math.inf) == {"_meta": {REMAINING_MS: 0}}, "who is cancelled already"
    params = {"_meta": {"a": 1, REMAINING_MS: 7}}
    assert with_remaining("tools/call", params, now + 1) == params, "what a call names itself goes before"
    assert with_remaining("tools/call", {"name": "x"}, math.inf) == {"name": "x"}
    assert with_remaining("initialize", {}, now + 1) == {}


@pytest.mark.parametrize("value", [-1, 1.5, "5", True, None, [], math.inf])
async def test_what_is_no_number_of_milliseconds_is_no_deadline(value: Any) -> None:
    assert due_of({REMAINING_MS: value}) == math.inf


async def test_a_number_of_milliseconds_counts_from_now(autojump_clock: MockClock) -> None:
    assert due_of({REMAINING_MS: 1500}) == trio.current_time() + 1.5
    assert due_of({}) == math.inf
    assert due_of({REMAINING_MS: 10**400}) == math.inf, "more than a float can say"


async def test_limits_that_move_count_with_what_they_never_exceed(autojump_clock: MockClock) -> None:
    now = trio.current_time()
    assert last_deadline() == math.inf
    with trio.fail_after(50):
        await trio.lowlevel.checkpoint()
        assert last_deadline() == now + 50
        with fail_after_silence(5, maximum=30):
            assert last_deadline() == now + 30
            with trio.fail_after(2):
                await trio.lowlevel.checkpoint()
                assert last_deadline() == now + 2, "it does not move"
        with fail_after_silence(5, maximum=600):
            assert last_deadline() == now + 50
        with fail_after_work(5):
            assert last_deadline() == now + 50
    with fail_after_work(5):
        assert last_deadline() == math.inf
