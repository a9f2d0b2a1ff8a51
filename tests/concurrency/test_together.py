"""run_together: concurrent calls that raise plain exceptions instead of groups."""

from __future__ import annotations

import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import Sequencer

from trio_mcp import CodedError
from trio_mcp.concurrency.nurseries import run_together


def gives(value: Any, seconds: float = 0) -> Callable[[], Awaitable[Any]]:
    async def give() -> Any:
        await trio.sleep(seconds)
        return value

    return give


def fails(error: BaseException, seconds: float = 0) -> Callable[[], Awaitable[Any]]:
    async def fail() -> Any:
        await trio.sleep(seconds)
        raise error

    return fail


async def test_run_together_returns_results_in_the_order_of_the_calls(autojump_clock: object) -> None:
    assert await run_together([gives("a", 3), gives("b", 1), gives("c", 2)]) == ["a", "b", "c"]
    assert trio.current_time() == 3


async def test_run_together_without_calls_returns_an_empty_list() -> None:
    assert await run_together([]) == []


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
async def test_run_together_raises_a_failure_unchanged_and_cancels_the_other_calls(
    autojump_clock: object, kind: Any
) -> None:
    error = kind("why")
    with pytest.raises(kind) as caught:
        await run_together([gives(1, 10), fails(error, 1), gives(2, 10)])
    assert caught.value is error
    assert trio.current_time() == 1


async def test_run_together_unwraps_an_exception_group_with_a_single_exception() -> None:
    async def nested() -> None:
        async with trio.open_nursery():
            raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await run_together([nested, gives(1, 10)])


async def test_run_together_raises_an_exception_group_of_a_call_with_all_exceptions_in_the_group() -> None:
    group = ExceptionGroup("both", [ValueError(), KeyError()])
    with pytest.raises(ExceptionGroup) as caught:
        await run_together([fails(group)])
    assert caught.value.exceptions == group.exceptions


async def test_run_together_logs_failures_after_the_first(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    late = RuntimeError("cleanup")

    async def stubborn() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise late

    with pytest.raises(ValueError, match="first"):
        await run_together([stubborn, fails(ValueError("first"), 1)])
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[1] is late


async def test_run_together_raises_keyboard_interrupt_even_after_an_earlier_failure(autojump_clock: object) -> None:
    async def interrupted() -> Any:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run_together([fails(LookupError(), 1), interrupted])


async def test_run_together_raises_the_first_of_two_coded_errors_without_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(CodedError):
        await run_together([fails(CodedError(-1, "no")), fails(CodedError(-1, "no"))])
    assert caplog.records == []


async def test_run_together_raises_a_single_cancelled_with_the_reason_of_the_cancelled_scope(
    autojump_clock: object,
) -> None:
    turns = Sequencer()

    async def wait(turn: int) -> None:
        async with turns(turn):
            pass
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                async with turns(2):
                    scope.cancel(reason="enough")

            nursery.start_soon(leave)
            with pytest.raises(trio.Cancelled) as caught:
                await run_together([lambda: wait(0), lambda: wait(1)])
            assert caught.value.reason == "enough"


async def slow_to_leave() -> None:
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)


@pytest.mark.parametrize("error", [ValueError("why"), ExceptionGroup("", [ValueError("why")])], ids=["plain", "group"])
async def test_run_together_reports_a_failure_before_the_other_calls_have_cleaned_up(
    autojump_clock: object, error: Exception
) -> None:
    told: list[tuple[float, str]] = []
    with pytest.raises(ValueError, match="why"):
        await run_together([slow_to_leave, fails(error, 1)], lambda e: told.append((trio.current_time(), repr(e))))
    assert told[0] == (1, repr(ValueError("why")))
    assert trio.current_time() == 61


async def test_run_together_reports_a_cancel_before_the_calls_have_cleaned_up(autojump_clock: object) -> None:
    told: list[tuple[float, str | None]] = []

    def tell(error: BaseException) -> None:
        assert isinstance(error, trio.Cancelled)
        told.append((trio.current_time(), error.source))

    with trio.move_on_after(1):
        await run_together([slow_to_leave, slow_to_leave], tell)
    assert told == [(1, "deadline")]
    assert trio.current_time() == 61


async def test_run_together_reports_no_failure_if_all_calls_succeed(autojump_clock: object) -> None:
    assert await run_together([gives(1), gives(2)], lambda _: pytest.fail("told")) == [1, 2]


async def test_run_together_raises_a_failure_during_an_outer_cancel(autojump_clock: object) -> None:
    async def stubborn() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("cleanup")

    with pytest.raises(ValueError, match="cleanup"), trio.move_on_after(1):
        await run_together([stubborn, gives(1, 10)])


async def test_run_together_leaves_no_reference_cycles_after_failure_or_cancel() -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise LookupError

    async def use() -> None:
        with pytest.raises(LookupError):
            await run_together([trio.sleep_forever, fail])
        with trio.CancelScope() as scope:
            scope.cancel()
            await run_together([trio.sleep_forever])

    await use()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            await use()
        assert gc.collect() < 20
    finally:
        gc.enable()


async def test_run_together_with_a_single_call_returns_its_result() -> None:
    assert await run_together([gives(1)]) == [1]


async def test_run_together_reports_a_cancel_while_one_of_several_calls_is_open(
    autojump_clock: object,
) -> None:
    told: list[float] = []
    with trio.move_on_after(5):
        await run_together([gives(1, 1), slow_to_leave], lambda _: told.append(trio.current_time()))
    assert told == [5]
