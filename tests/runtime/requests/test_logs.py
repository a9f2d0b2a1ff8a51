"""Log messages of one request: which are sent, when they wait for room, and how others get to run."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp.jsonrpc.errors import NotSerializable
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.protocol.types.notifications import LogLevel
from trio_mcp.runtime.outbox import LINE_END, Outbox, Owner
from trio_mcp.runtime.requests import reports
from trio_mcp.runtime.requests.reports import RequestLog

LEVELS = [level.value for level in LogLevel]


@attrs.define(eq=False)
class FakeScope:
    """Of a request, only what its log looks at."""

    outbox: Outbox = attrs.field(factory=lambda: Outbox(1000))
    lines: Owner = attrs.field(factory=Owner)
    sends: bool = True
    line_end: bytes = LINE_END
    runner: Any = attrs.field(factory=lambda: SimpleNamespace(may_log=True, trio_run=SimpleNamespace(is_here=True)))
    request: Any = attrs.field(factory=lambda: SimpleNamespace(revision=LATEST_LEGACY))
    exchange: Any = attrs.field(factory=lambda: SimpleNamespace(state=SimpleNamespace(log_rank=0)))

    def sent(self) -> list[Any]:
        """The parameters of what was sent since this was asked last."""
        lines = bytes(self.outbox.take_nowait()).splitlines()
        messages = [json.loads(line) for line in lines]
        assert {message["method"] for message in messages} <= {"notifications/message"}
        return [message["params"] for message in messages]


@pytest.fixture
def scope() -> FakeScope:
    return FakeScope()


@pytest.mark.parametrize("level", LEVELS)
async def test_request_log_has_a_method_for_each_level_and_a_method_that_takes_the_level(
    scope: Any, level: str
) -> None:
    log = RequestLog(scope)
    send: Callable[..., Any] = getattr(log, level)
    await send({"a": [1, None]})
    await send("x", logger="l")
    await log.log(level, "y", "l")
    assert log.log_nowait(level, "z", "l")
    assert log.log_nowait(level, "z")
    assert scope.sent() == [
        {"level": level, "data": {"a": [1, None]}},
        *({"level": level, "logger": "l", "data": data} for data in "xyz"),
        {"level": level, "data": "z"},
    ]


@pytest.mark.parametrize("minimum", range(9))
async def test_log_messages_below_the_minimum_level_are_not_sent(scope: Any, minimum: int) -> None:
    scope.exchange.state.log_rank = minimum
    log = RequestLog(scope)
    for level in LEVELS:
        await getattr(log, level)("x")
    assert [each["level"] for each in scope.sent()] == LEVELS[minimum:]
    for level in LEVELS:
        await log.log(level, "x")
    assert [each["level"] for each in scope.sent()] == LEVELS[minimum:]


async def test_log_message_with_an_unknown_level_is_sent_unless_logging_is_turned_off(scope: Any) -> None:
    log = RequestLog(scope)
    scope.exchange.state.log_rank = 7
    await log.log("odd", "x")
    assert log.log_nowait("odd", "x")
    assert [each["level"] for each in scope.sent()] == ["odd", "odd"]
    scope.exchange.state.log_rank = 8
    await log.log("odd", "x")
    assert scope.sent() == []


async def test_log_messages_written_after_the_end_of_a_request_are_not_sent(scope: Any) -> None:
    log = RequestLog(scope)
    scope.sends = False
    await log.error("x")
    assert not log.log_nowait("error", "x")
    assert scope.sent() == []


@pytest.mark.parametrize("data", [float("nan"), object()])
async def test_log_message_that_is_not_json_raises_and_is_not_sent(scope: Any, data: Any) -> None:
    log = RequestLog(scope)
    with pytest.raises(NotSerializable):
        await log.info(data)
    with pytest.raises(NotSerializable):
        await log.info("x", cast("Any", data))
    with pytest.raises(NotSerializable):
        log.log_nowait("info", data)
    assert scope.sent() == []


async def test_unsent_log_messages_are_removed_from_the_outbox_when_the_request_is_cancelled(scope: Any) -> None:
    log = RequestLog(scope)
    await log.info("x")
    log.log_nowait("info", "y")
    assert scope.outbox.withdraw(scope.lines)
    assert scope.sent() == []


async def test_cancelled_handler_sends_no_log_messages(scope: Any) -> None:
    log = RequestLog(scope)
    with trio.CancelScope() as cancelled:
        cancelled.cancel()
        await log.info("x")
    assert cancelled.cancelled_caught
    assert scope.sent() == []


# Room


def full(scope: Any) -> None:
    scope.outbox.put(b'{"method":"notifications/message","params":0}' + b" " * 1000 + b"\n")


async def test_log_waits_for_space_in_a_full_outbox_but_log_nowait_drops_the_message(scope: Any) -> None:
    log = RequestLog(scope)
    full(scope)
    assert not log.log_nowait("info", "dropped")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.info, "waits")
        await wait_all_tasks_blocked()
        assert scope.sent() == [0]
    assert [each["data"] for each in scope.sent()] == ["waits"]


@pytest.mark.parametrize("meanwhile", ["ended", "level"])
async def test_log_message_that_waits_in_the_outbox_is_filtered_by_the_level_at_sending(
    scope: Any, meanwhile: str
) -> None:
    log = RequestLog(scope)
    full(scope)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.info, "waits")
        await wait_all_tasks_blocked()
        if meanwhile == "ended":
            scope.sends = False
        else:
            scope.exchange.state.log_rank = 2
        scope.sent()
    assert scope.sent() == []


async def test_log_messages_of_a_retried_request_are_sent_on_the_stream_of_the_retry(scope: Any) -> None:
    log, before = RequestLog(scope), scope.outbox
    scope.outbox = Outbox(1000)
    await log.info("x")
    log.log_nowait("info", "y")
    assert before.size == 0
    assert [each["data"] for each in scope.sent()] == ["x", "y"]


# Letting others run


class Clock:
    """The real time, as it is told to the log."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def real_time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reports, "perf_counter", clock)
    return clock


class Turns(list[int]):
    """After how many messages others were let run, each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._monkeypatch = monkeypatch
        self._sent = 0

    async def _turn(self) -> None:
        self.append(self._sent)

    async def in_(self, count: int, log: Callable[[], Any]) -> list[int]:
        self.clear()
        with self._monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "checkpoint", self._turn)
            for self._sent in range(1, count + 1):
                await log()
        return self


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


async def test_handler_that_logs_32_filtered_messages_in_a_millisecond_yields_to_other_tasks(
    scope: Any, real_time: Clock, turns: Turns
) -> None:
    scope.exchange.state.log_rank = 5
    log = RequestLog(scope)
    assert await turns.in_(100, lambda: log.debug("x")) == [32], "no time has passed since"
    real_time.now += 0.001
    assert await turns.in_(60, lambda: log.debug("x")) == [28]
    real_time.now += 0.0009
    assert await turns.in_(40, lambda: log.debug("x")) == []


async def test_handler_that_queues_many_log_messages_yields_to_other_tasks(
    scope: Any, real_time: Clock, turns: Turns
) -> None:
    scope.outbox = Outbox(100_000)
    log = RequestLog(scope)
    assert await turns.in_(50, lambda: log.info("x")) == [], "until 16 KiB wait, the writer gets its turn"
    scope.outbox.put(b"x" * (16 * 1024 - scope.outbox.size))
    assert await turns.in_(40, lambda: log.info("x")) == [32]
