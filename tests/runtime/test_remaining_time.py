"""The time that is left, on its way with a call."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import fail_after_silence
from trio_mcp.concurrency.time_limits import fail_after_work, latest_deadline
from trio_mcp.protocol.methods import METHODS
from trio_mcp.runtime.cancellation import REMAINING_MS, deadline_of, with_remaining

AT_ONCE = {"initialize", "server/discover", "ping", "subscriptions/listen"}


@pytest.mark.parametrize("method", METHODS)
async def test_remaining_time_is_sent_only_with_methods_that_run_a_handler(
    autojump_clock: MockClock, method: str
) -> None:
    params = with_remaining(method, {}, trio.current_time() + 2)
    assert params == ({} if method in AT_ONCE else {"_meta": {REMAINING_MS: 2000}})


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.0001, 1), (0.001, 1), (2.0001, 2001), (0, 0), (-3, 0), (-math.inf, 0)]
)
async def test_remaining_time_is_rounded_up_to_milliseconds(
    autojump_clock: MockClock, seconds: float, told: int
) -> None:
    await trio.sleep(1024)
    assert with_remaining("tools/call", {}, trio.current_time() + seconds) == {"_meta": {REMAINING_MS: told}}


async def test_remaining_time_is_added_to_a_copy_of_the_params_and_existing_meta_is_kept(
    autojump_clock: MockClock,
) -> None:
    params: dict[str, Any] = {"name": "x", "_meta": {"a": 1}}
    now = trio.current_time()
    assert with_remaining("tools/call", params, now + 1) == {"name": "x", "_meta": {REMAINING_MS: 1000, "a": 1}}
    assert params == {"name": "x", "_meta": {"a": 1}}
    assert with_remaining("tools/call", {"_meta": None}, now + 1) == {"_meta": {REMAINING_MS: 1000}}
    assert with_remaining("tools/call", {"_meta": {REMAINING_MS: 7}}, now + 1) == {"_meta": {REMAINING_MS: 7}}
    assert with_remaining("tools/call", None, now + 1) == {"_meta": {REMAINING_MS: 1000}}


@pytest.mark.parametrize("params", [None, {}, {"name": "x"}])
async def test_request_params_are_unchanged_if_there_is_no_deadline(
    autojump_clock: MockClock, params: dict[str, Any] | None
) -> None:
    assert with_remaining("tools/call", params, math.inf) is params


@pytest.mark.parametrize(("told", "seconds"), [(0, 0), (1, 0.001), (1500, 1.5), (10**12, 10**9)])
async def test_deadline_of_a_request_is_counted_from_its_arrival(
    autojump_clock: MockClock, told: int, seconds: float
) -> None:
    await trio.sleep(1024)
    assert deadline_of({REMAINING_MS: told}) == 1024 + seconds


@pytest.mark.parametrize("told", [-1, 10**12 + 1, 1.0, True, "1", None, []])
async def test_request_with_an_invalid_remaining_time_has_no_deadline(autojump_clock: MockClock, told: Any) -> None:
    assert deadline_of({REMAINING_MS: told}) == math.inf
    assert deadline_of({}) == math.inf


async def test_remaining_time_is_sent_in_whole_milliseconds(autojump_clock: MockClock) -> None:
    now = trio.current_time()
    assert with_remaining("tools/call", {"name": "x"}, now + 1.2345) == {"name": "x", "_meta": {REMAINING_MS: 1235}}
    assert with_remaining("tools/call", None, now - 5) == {"_meta": {REMAINING_MS: 0}}
    assert with_remaining("tools/call", {}, -math.inf) == {"_meta": {REMAINING_MS: 0}}, "who is cancelled already"
    params = {"_meta": {"a": 1, REMAINING_MS: 7}}
    assert with_remaining("tools/call", params, now + 1) == params, "what a call names itself goes before"
    assert with_remaining("tools/call", {"name": "x"}, math.inf) == {"name": "x"}
    assert with_remaining("initialize", {}, now + 1) == {}


@pytest.mark.parametrize("value", [-1, 1.5, "5", True, None, [], math.inf])
async def test_remaining_time_that_is_not_a_number_is_ignored(value: Any) -> None:
    assert deadline_of({REMAINING_MS: value}) == math.inf


async def test_deadline_is_the_current_time_plus_the_remaining_milliseconds(autojump_clock: MockClock) -> None:
    assert deadline_of({REMAINING_MS: 1500}) == trio.current_time() + 1.5
    assert deadline_of({}) == math.inf
    assert deadline_of({REMAINING_MS: 10**400}) == math.inf, "more than a float can say"


async def test_remaining_time_of_a_request_includes_the_maximum_of_an_enclosing_fail_after_silence(
    autojump_clock: MockClock,
) -> None:
    now = trio.current_time()
    assert latest_deadline() == math.inf
    with trio.fail_after(50):
        await trio.lowlevel.checkpoint()
        assert latest_deadline() == now + 50
        with fail_after_silence(5, maximum=30):
            assert latest_deadline() == now + 30
            with trio.fail_after(2):
                await trio.lowlevel.checkpoint()
                assert latest_deadline() == now + 2, "it does not move"
        with fail_after_silence(5, maximum=600):
            assert latest_deadline() == now + 50
        with fail_after_work(5):
            assert latest_deadline() == now + 50
    with fail_after_work(5):
        assert latest_deadline() == math.inf
