from __future__ import annotations

import json
import math
import sys
from decimal import Decimal
from fractions import Fraction
from http import HTTPStatus
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.concurrency.wakeups import Alarms
from trio_mcp.runtime.outbox import Outbox, Owner
from trio_mcp.runtime.requests.reports import ProgressReporter


class Reporting:
    """A reporter, and what went out."""

    def __init__(
        self, token: Any = "t", interval: float = 0.1, *, with_message: bool = True, alarms: Alarms | None = None
    ) -> None:
        self.outbox, self.owner = Outbox(16384), Owner()
        self.alarms = Alarms() if alarms is None else alarms
        self.reporter = ProgressReporter(
            self.outbox, self.owner, token, interval, self.alarms, with_message=with_message
        )
        self.report = self.reporter.report

    @property
    def sent(self) -> list[dict[str, Any]]:
        """What the writer finds now."""
        lines = bytes(self.outbox.take_nowait()).splitlines()
        return [json.loads(line)["params"] for line in lines]

    @property
    def values(self) -> list[float]:
        return [params["progress"] for params in self.sent]


async def test_first_progress_value_is_sent_immediately(autojump_clock: object) -> None:
    reporting = Reporting()
    assert reporting.report(1, 10, "one of ten")
    assert reporting.sent == [{"progressToken": "t", "progress": 1, "total": 10, "message": "one of ten"}]


@pytest.mark.parametrize("token", [0, -1, "", "0", 9007199254740993, "😀"])
async def test_progress_token_keeps_its_type_and_value(autojump_clock: object, token: Any) -> None:
    reporting = Reporting(token)
    reporting.report(1)
    [params] = reporting.sent
    assert params == {"progressToken": token, "progress": 1}
    assert type(params["progressToken"]) is type(token)


async def test_progress_can_be_the_lowest_finite_float(autojump_clock: object) -> None:
    reporting = Reporting()
    assert reporting.report(-sys.float_info.max)
    assert reporting.values == [-sys.float_info.max]


async def test_progress_message_is_not_sent_in_a_revision_that_does_not_define_it(autojump_clock: object) -> None:
    reporting = Reporting(with_message=False)
    reporting.report(1, None, "told")
    assert reporting.sent == [{"progressToken": "t", "progress": 1}]


async def test_progress_within_the_interval_is_buffered_and_only_the_latest_is_sent(autojump_clock: object) -> None:
    reporting = Reporting()
    assert [reporting.report(value) for value in (1, 2, 3)] == [True, False, False]
    assert reporting.reporter.due == pytest.approx(trio.current_time() + 0.1)
    assert len(reporting.alarms) == 1
    assert not reporting.reporter.let_out()
    await trio.sleep(0.1)
    assert reporting.reporter.let_out()
    assert reporting.reporter.due is None
    await trio.sleep(1)
    assert not reporting.reporter.let_out()


async def test_progress_after_the_interval_is_sent_immediately(autojump_clock: object) -> None:
    reporting = Reporting()
    reporting.report(1)
    await trio.sleep(0.1)
    assert reporting.report(2)


async def test_progress_flush_sends_the_buffered_value_before_the_interval_ends(autojump_clock: object) -> None:
    reporting = Reporting()
    reporting.report(1)
    assert reporting.values == [1]
    reporting.report(2)
    assert reporting.reporter.flush()
    assert not reporting.reporter.flush()
    assert reporting.values == [2]


async def test_unsent_progress_is_replaced_by_the_next_value(autojump_clock: object) -> None:
    reporting = Reporting()
    for value in range(100):
        reporting.report(value)
        await trio.sleep(1)
    assert reporting.values == [99]


async def test_progress_that_does_not_increase_is_dropped(autojump_clock: object) -> None:
    reporting = Reporting(interval=0)
    sent: list[float] = []
    for value in (1, 1, 0.5, math.nan, -math.inf, math.inf, -5, 2):
        reporting.report(value)
        sent += reporting.values
    assert sent == [1, 2]


@pytest.mark.parametrize(
    "value", [None, "5", True, [], {}, object(), 1j, Decimal("NaN"), Decimal(5), math.nan, math.inf]
)
async def test_progress_that_is_not_a_number_is_dropped_without_an_error(autojump_clock: object, value: Any) -> None:
    reporting = Reporting(interval=0)
    assert not reporting.report(value)
    assert reporting.sent == []


@pytest.mark.parametrize(
    ("total", "message"),
    [(math.nan, None), (object(), None), ("10", None), (Decimal(10), None), (None, "\ud800"), (None, object())],
)
async def test_progress_with_an_invalid_total_or_message_is_dropped(
    autojump_clock: object, total: Any, message: Any
) -> None:
    reporting = Reporting(interval=0)
    assert not reporting.report(1, total, message)
    assert reporting.report(2)
    assert reporting.values == [2]


@pytest.mark.parametrize(
    ("total", "message"),
    [(math.nan, None), (object(), None), (True, None), (10**5000, None), (None, "\ud800"), (None, 5), (None, b"x")],
    ids=range(7),
)
async def test_invalid_progress_does_not_affect_buffered_or_later_progress(
    autojump_clock: object, total: Any, message: Any
) -> None:
    reporting = Reporting()
    assert reporting.report(1)
    assert not reporting.report(2, 10, "kept")
    assert not reporting.report(3, total, message)
    assert reporting.reporter.flush()
    assert reporting.sent[-1] == {"progressToken": "t", "progress": 2, "total": 10, "message": "kept"}
    assert not reporting.report(2.5, total, message)
    assert reporting.reporter.due is None, "nothing is kept"
    await trio.sleep(1)
    assert reporting.report(2.5), "what could not be sent does not count as told"


class Count(int):
    """An integer of another type, as members of an IntEnum are."""


class Share(float):
    """A float of another type, as numpy.float64 is one."""


class Words(str):
    """Text of another type, as numpy.str_ is."""

    __slots__ = ()


@Integral.register
class Int64:
    """A registered number that is no int, as numpy.int64 is one."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __int__(self) -> int:
        return self.value

    __index__ = __int__


@Real.register
class Broken:
    def __float__(self) -> float:
        raise LookupError("no number after all")


@pytest.mark.parametrize(
    ("value", "plain"), [(Count(3), 3), (Share(2.5), 2.5), (Int64(7), 7), (Fraction(1, 4), 0.25), (HTTPStatus.OK, 200)]
)
async def test_progress_numbers_can_have_numeric_types_other_than_int_and_float(
    autojump_clock: object, value: Any, plain: float
) -> None:
    reporting = Reporting()
    assert reporting.report(value, value, Words("so far"))
    assert reporting.sent == [{"progressToken": "t", "progress": plain, "total": plain, "message": "so far"}]
    assert not reporting.report(value), "it does not exceed itself"


@pytest.mark.parametrize("value", [Broken(), 10**5000, Share("nan"), Share("inf"), Int64(10**400)], ids=range(5))
async def test_progress_value_whose_type_only_resembles_a_number_is_dropped(autojump_clock: object, value: Any) -> None:
    reporting = Reporting()
    assert not reporting.report(value)
    assert not reporting.report(1, value)
    assert reporting.report(1)
    assert reporting.values == [1]


async def test_unsent_progress_is_removed_from_the_outbox_together_with_its_request(autojump_clock: object) -> None:
    reporting = Reporting()
    reporting.report(1)
    reporting.outbox.withdraw(reporting.owner)
    assert reporting.sent == []


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.sampled_from([0.0, 0.03, 0.1, 0.5])), max_size=30))
def test_sent_progress_values_always_increase_and_keep_the_interval_and_include_the_latest(
    reports: list[tuple[float, float]],
) -> None:
    async def play() -> None:
        alarms = Alarms()
        reporting, sent = Reporting(alarms=alarms), list[tuple[float, float]]()

        async def look() -> None:
            while True:
                await wait_all_tasks_blocked()
                sent.extend((trio.current_time(), value) for value in reporting.values)
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarms.run)
            nursery.start_soon(look)
            for value, pause in reports:
                reporting.report(value)
                await trio.sleep(pause)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        values = [value for _, value in sent]
        assert values == sorted(set(values))
        times = [time for time, _ in sent]
        assert all(after - before > 0.08 for before, after in pairwise(times))
        increasing = [value for value, _ in reports if math.isfinite(value)]
        assert values[-1:] == ([max(increasing)] if increasing else [])

    trio.run(play, clock=MockClock(autojump_threshold=0))
