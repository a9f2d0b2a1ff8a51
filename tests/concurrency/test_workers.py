"""Plain functions in worker threads: results, cancellation, and abandoned threads."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from weakref import ref

import attrs
import pytest
import trio
from tests.gates import Gate
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.concurrency import workers
from trio_mcp.concurrency.fair_share import Caller
from trio_mcp.concurrency.time_limits import Graces
from trio_mcp.concurrency.workers import SlotState, Workers, WorkerShare, await_in_worker, frames_of, run_in_worker
from trio_mcp.jsonrpc.errors import CodedError

BOUND = 2
"""Most threads in each state."""


@pytest.fixture
def clock() -> MockClock:
    """A clock that stands still until a test lets it jump: a thread that runs is nothing that trio waits for."""
    return MockClock()


@attrs.define
class Desk:
    """Those who have calls run in threads."""

    workers: Workers
    graces: Graces
    share: WorkerShare
    gates: list[Gate] = attrs.field(factory=list[Gate])

    def gate(self) -> Gate:
        self.gates.append(Gate())
        return self.gates[-1]

    async def run(self, call: Callable[[], Any]) -> Any:
        return await run_in_worker(call, self.share, lambda: self.graces)

    def counts(self) -> tuple[int, int, int]:
        """How many run, ask and are abandoned."""
        return (
            BOUND - self.workers.free(SlotState.RUNNING),
            BOUND - self.workers.free(SlotState.ASKING),
            BOUND - self.workers.free(SlotState.ABANDONED),
        )


@pytest.fixture
async def desk(clock: MockClock) -> AsyncGenerator[Desk]:
    threads = Workers(BOUND, BOUND, BOUND)
    desk = Desk(threads, Graces(5), threads.share(Caller(alone=True)))
    yield desk
    for gate in desk.gates:
        gate.open()


@asynccontextmanager
async def until_cancelled(desk: Desk, call: Callable[[], Any]) -> AsyncGenerator[trio.CancelScope]:
    """A call that is run for as long as the block lasts, and must leave by its cancel then."""
    done = trio.Event()
    scope = trio.CancelScope()

    async def run() -> None:
        with scope:
            await desk.run(call)
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield scope
        scope.cancel(reason="enough")
        await done.wait()
        assert scope.cancelled_caught


async def test_function_called_in_a_worker_thread_returns_its_result_to_the_trio_task(desk: Desk) -> None:
    assert await desk.run(lambda: 5) == 5
    assert await desk.run(threading.get_ident) != threading.get_ident()
    assert desk.counts() == (0, 0, 0)


async def test_function_called_in_a_worker_thread_raises_its_exception_without_an_exception_group(desk: Desk) -> None:
    error = LookupError("why")

    def fail() -> None:
        raise error

    with pytest.raises(LookupError) as caught:
        await desk.run(fail)
    assert caught.value is error
    assert desk.counts() == (0, 0, 0)


async def test_function_called_in_a_worker_thread_counts_as_running_until_the_function_ends(desk: Desk) -> None:
    gate = desk.gate()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.run, gate.wait)
        await gate.until_waiting()
        assert desk.counts() == (1, 0, 0)
        gate.open()
    assert desk.counts() == (0, 0, 0)


async def test_worker_thread_that_checks_for_cancel_ends_without_a_log_entry(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    gate, seen = desk.gate(), list[str]()

    def look() -> None:
        gate.wait()
        try:
            trio.from_thread.check_cancelled()
        except trio.Cancelled:
            seen.append("cancelled")
            raise

    async with until_cancelled(desk, look) as scope:
        await gate.until_waiting()
        scope.cancel()
        await wait_all_tasks_blocked()
        assert desk.counts() == (1, 0, 0), "it is waited for"
        gate.open()
    assert seen == ["cancelled"]
    assert desk.counts() == (0, 0, 0)
    assert caplog.records == []


async def test_result_that_a_worker_thread_returns_after_the_call_was_cancelled_is_ignored(desk: Desk) -> None:
    gate = desk.gate()
    async with until_cancelled(desk, gate.wait) as scope:
        await gate.until_waiting()
        scope.cancel()
        await wait_all_tasks_blocked()
        gate.open()


async def test_worker_thread_that_runs_on_after_the_grace_period_is_abandoned_and_logged(
    desk: Desk, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    gate = desk.gate()

    def deaf(secret: str) -> str:
        gate.wait()
        return secret

    async with until_cancelled(desk, partial(deaf, "secret")) as scope:
        await gate.until_waiting()
        begun = trio.current_time()
        scope.cancel()
        clock.autojump_threshold = 0
    assert trio.current_time() == begun + 5
    clock.autojump_threshold = float("inf")
    assert desk.counts() == (0, 0, 1)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    told = record.getMessage()
    assert told.startswith("a thread that did not end within 5 s of its cancel is abandoned: ")
    assert "deaf, at:\n" in told
    assert "in deaf\n    gate.wait()" in told
    assert "in wait\n    assert self._changed.wait_for" in told
    assert "secret" not in told.replace("return secret", "")
    assert "outcome" not in told
    assert "_body" not in told
    gate.open()
    while desk.counts() != (0, 0, 0):
        await trio.lowlevel.checkpoint()


async def test_cancelled_call_that_waits_for_a_worker_thread_never_starts(desk: Desk) -> None:
    gates = [desk.gate(), desk.gate()]
    async with trio.open_nursery() as nursery:
        for gate in gates:
            nursery.start_soon(desk.run, gate.wait)
            await gate.until_waiting()
        async with until_cancelled(desk, lambda: pytest.fail("it started")):
            await wait_all_tasks_blocked()
        for gate in gates:
            gate.open()
    assert desk.counts() == (0, 0, 0)


async def test_function_does_not_run_if_the_call_is_cancelled_before_the_worker_thread_starts(
    desk: Desk, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = list[Callable[[], None]]()

    async def run_sync(body: Callable[[], None], *, limiter: Any, **_: Any) -> None:
        await limiter.acquire_on_behalf_of(None)
        bodies.append(body)
        await trio.sleep_forever()

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    async with until_cancelled(desk, lambda: pytest.fail("it started")):
        await wait_all_tasks_blocked()
    for body in bodies:
        body()
    assert len(bodies) == 1


async def test_call_in_a_worker_thread_is_refused_while_too_many_threads_are_abandoned(
    desk: Desk, clock: MockClock
) -> None:
    desk.graces.shorten(0)
    gates = [desk.gate(), desk.gate()]
    for gate in gates:
        async with until_cancelled(desk, gate.wait):
            await gate.until_waiting()
    assert desk.counts() == (0, 0, 2)
    with pytest.raises(CodedError, match="Too busy: too many cancelled calls are still running"):
        await desk.run(lambda: pytest.fail("it started"))


async def test_calls_that_wait_for_a_worker_thread_start_in_order(desk: Desk) -> None:
    started, gate = list[int](), desk.gate()

    def note(number: int) -> None:
        started.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.run, gate.wait)
        await gate.until_waiting()
        second = desk.gate()
        nursery.start_soon(desk.run, second.wait)
        await second.until_waiting()
        for number in range(10):
            nursery.start_soon(desk.run, partial(note, number))
            await wait_all_tasks_blocked()
        gate.open()
        while len(started) < 10:
            await trio.lowlevel.checkpoint()
        second.open()
    assert started == list(range(10))


# Waiting for trio in a thread


async def test_function_awaited_in_a_worker_thread_returns_its_result(desk: Desk) -> None:
    async def give(value: int) -> int:
        await trio.lowlevel.checkpoint()
        return value

    assert await desk.run(lambda: await_in_worker(partial(give, 3)) + await_in_worker(partial(give, 4))) == 7


async def test_function_awaited_in_a_worker_thread_raises_its_exception(desk: Desk) -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise LookupError("why")

    def call() -> str:
        with pytest.raises(LookupError, match="why"):
            await_in_worker(fail)
        return "caught"

    assert await desk.run(call) == "caught"


@pytest.mark.parametrize("asks", [True, False])
async def test_worker_thread_does_not_count_as_running_while_it_waits_for_the_peer(desk: Desk, asks: bool) -> None:
    counted = list[tuple[int, int, int]]()

    async def count() -> None:
        await trio.lowlevel.checkpoint()
        counted.append(desk.counts())

    def call() -> None:
        await_in_worker(count, asks=asks)
        await_in_worker(count)

    await desk.run(call)
    assert counted == [(0, 1, 0) if asks else (1, 0, 0), (1, 0, 0)]


async def test_worker_thread_counts_as_running_again_after_a_failed_request_to_the_peer(desk: Desk) -> None:
    async def fail() -> None:
        raise LookupError

    def call() -> tuple[int, int, int]:
        with pytest.raises(LookupError):
            await_in_worker(fail, asks=True)
        return desk.counts()

    assert await desk.run(call) == (1, 0, 0)


async def test_worker_threads_are_refused_if_too_many_already_wait_for_the_peer(desk: Desk) -> None:
    async def sleep() -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(desk.run, lambda: await_in_worker(sleep, asks=True))
        while desk.counts() != (0, 2, 0):
            await trio.lowlevel.checkpoint()
        with pytest.raises(CodedError, match="too many handlers in threads wait for answers"):
            await desk.run(lambda: await_in_worker(sleep, asks=True))
        nursery.cancel_scope.cancel()
    assert desk.counts() == (0, 0, 0)


@pytest.mark.parametrize("asks", [True, False])
async def test_cancelled_call_cancels_the_function_that_its_worker_thread_awaits(desk: Desk, asks: bool) -> None:
    waiting, ended = trio.Event(), list[str]()

    async def wait() -> None:
        waiting.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.append("awaited")

    def call() -> None:
        try:
            await_in_worker(wait, asks=asks)
        except trio.Cancelled as cancelled:
            ended.append(f"thread: {cancelled.reason}")
            raise

    async with until_cancelled(desk, call):
        await waiting.wait()
    assert ended == ["awaited", "thread: enough"]
    assert desk.counts() == (0, 0, 0)


async def test_worker_thread_of_a_cancelled_call_cannot_await_a_function(desk: Desk) -> None:
    gate, ended = desk.gate(), list[str]()

    async def never() -> None:
        ended.append("awaited")

    def call() -> None:
        gate.wait()
        try:
            await_in_worker(never)
        except trio.Cancelled:
            ended.append("cancelled")
            raise

    async with until_cancelled(desk, call) as scope:
        await gate.until_waiting()
        scope.cancel()
        await wait_all_tasks_blocked()
        gate.open()
    assert ended == ["cancelled"]


async def test_function_awaited_in_a_worker_thread_can_cancel_itself_without_cancelling_the_thread(desk: Desk) -> None:
    async def give_up() -> bool:
        with trio.move_on_after(0) as scope:
            await trio.sleep_forever()
        return scope.cancelled_caught

    assert await desk.run(lambda: await_in_worker(give_up)) is True


async def test_function_can_be_awaited_in_threads_started_with_trio_to_thread(desk: Desk) -> None:
    async def give() -> str:
        await trio.lowlevel.checkpoint()
        return "given"

    assert await trio.to_thread.run_sync(await_in_worker, give) == "given"


async def test_stack_of_a_task_that_returned_from_a_worker_thread_shows_the_frames_of_the_task(desk: Desk) -> None:
    await desk.run(lambda: None)
    task = trio.lowlevel.current_task()
    assert list(frames_of(task)) == list(task.iter_await_frames())


# Where a call is


async def test_stack_of_a_task_that_runs_a_worker_thread_shows_the_frames_of_the_thread(desk: Desk) -> None:
    gate, tasks = desk.gate(), list[trio.lowlevel.Task]()

    def outer() -> None:
        gate.wait()

    async def run() -> None:
        tasks.append(trio.lowlevel.current_task())
        await desk.run(outer)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await gate.until_waiting()
        names = [frame.f_code.co_name for frame, _ in frames_of(tasks[0])]
        assert names[:2] == ["outer", "wait"]
        gate.open()


async def test_stack_of_a_task_whose_worker_thread_has_just_ended_shows_the_frames_of_the_task(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, tasks = desk.gate(), list[trio.lowlevel.Task]()

    async def run() -> None:
        tasks.append(trio.lowlevel.current_task())
        await desk.run(gate.wait)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await gate.until_waiting()
        (task,) = tasks
        work, look = task.context[workers._here], sys._current_frames

        def look_too_late() -> Any:
            work._ident = None
            return look()

        monkeypatch.setattr(sys, "_current_frames", look_too_late)
        assert next(iter(frames_of(task)))[0].f_code.co_name == "run"
        gate.open()


async def test_stack_of_a_task_without_a_worker_thread_shows_the_frames_of_the_task(desk: Desk) -> None:
    tasks = list[trio.lowlevel.Task]()

    async def wait() -> None:
        tasks.append(trio.lowlevel.current_task())
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert next(frame.f_code.co_name for frame, _ in frames_of(tasks[0])) == "wait"
        nursery.cancel_scope.cancel()


async def test_stack_of_a_task_that_waits_for_a_free_worker_thread_shows_the_frames_of_the_task(desk: Desk) -> None:
    gates, tasks = [desk.gate(), desk.gate()], list[trio.lowlevel.Task]()

    async def run() -> None:
        tasks.append(trio.lowlevel.current_task())
        await desk.run(lambda: None)

    async with trio.open_nursery() as nursery:
        for gate in gates:
            nursery.start_soon(desk.run, gate.wait)
            await gate.until_waiting()
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        assert [frame.f_code.co_name for frame, _ in frames_of(tasks[0])][:2] == ["run", "run"]
        for gate in gates:
            gate.open()


class Held:
    """Something that a frame of the thread knows."""


@pytest.fixture
def no_collector() -> Generator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
async def test_worker_results_and_exceptions_are_freed_without_garbage_collection(desk: Desk) -> None:
    kept: list[ref[Held]] = []

    async def raise_it() -> None:
        await trio.lowlevel.checkpoint()
        raise LookupError

    def fail(awaits: bool) -> None:
        held = Held()
        kept.append(ref(held))
        if awaits:
            await_in_worker(raise_it)
        raise LookupError

    def give() -> Held:
        held = Held()
        kept.append(ref(held))
        return held

    for awaits in (True, False):
        with pytest.raises(LookupError):
            await desk.run(partial(fail, awaits))
    await desk.run(give)
    while desk.counts() != (0, 0, 0):
        await trio.lowlevel.checkpoint()
    assert [each() for each in kept] == [None, None, None]


@pytest.mark.usefixtures("no_collector")
async def test_worker_exception_raised_at_the_moment_of_a_cancel_is_freed_without_gc(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[ref[Held]] = []

    async def run_sync(body: Callable[[], None], *, limiter: Any, **_: Any) -> None:
        await limiter.acquire_on_behalf_of(None)
        body()
        limiter.release_on_behalf_of(None)
        await trio.sleep_forever()

    def fail() -> None:
        held = Held()
        kept.append(ref(held))
        raise LookupError

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    async with until_cancelled(desk, fail):
        await wait_all_tasks_blocked()
    assert [each() for each in kept] == [None]


@pytest.mark.usefixtures("no_collector")
async def test_result_or_exception_of_an_abandoned_thread_is_freed_without_gc(desk: Desk) -> None:
    kept: list[ref[Held]] = []

    def end_late(gate: Gate, error: type[Exception] | None) -> Held:
        held = Held()
        kept.append(ref(held))
        gate.wait()
        if error is not None:
            raise error
        return held

    desk.graces.shorten(0)
    for error in (LookupError, None):
        gate = desk.gate()
        async with until_cancelled(desk, partial(end_late, gate, error)):
            await gate.until_waiting()
        gate.open()
        while desk.counts() != (0, 0, 0):
            await trio.lowlevel.checkpoint()
    assert [each() for each in kept] == [None, None]
