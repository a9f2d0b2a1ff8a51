from __future__ import annotations

from collections import deque

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from trio_mcp.concurrency.fair_share import Caller
from trio_mcp.concurrency.workers import SlotState, Workers, WorkerShare, WorkerSlot
from trio_mcp.jsonrpc.errors import TOO_BUSY, CodedError


class Hanging:
    def describe(self) -> str:
        return "hanging\n"


@attrs.frozen
class HangingAt:
    number: int

    def describe(self) -> str:
        return f"place {self.number}\n"


@attrs.define(eq=False)
class Line:
    """Those of one connection that want threads."""

    share: WorkerShare
    nursery: trio.Nursery
    running: deque[WorkerSlot] = attrs.field(factory=deque[WorkerSlot])
    order: list[int] = attrs.field(factory=list[int])
    waiting: dict[int, trio.CancelScope] = attrs.field(factory=dict[int, trio.CancelScope])
    refused: int = 0
    count: int = 0

    async def want(self) -> None:
        """One more."""
        number, self.count = self.count, self.count + 1
        self.nursery.start_soon(self._wait, number)
        await wait_all_tasks_blocked()

    async def _wait(self, number: int) -> None:
        place = WorkerSlot(self.share)
        with trio.CancelScope() as self.waiting[number]:
            try:
                await place.acquire_on_behalf_of(None)
            except CodedError:
                self.refused += 1
            else:
                self.running.append(place)
                self.order.append(number)
        del self.waiting[number]

    async def end(self) -> None:
        """The oldest that runs ends."""
        self.running.popleft().release_on_behalf_of(None)
        await wait_all_tasks_blocked()


async def test_connections_that_wait_for_worker_threads_get_threads_in_turn() -> None:
    workers = Workers(running=1, asking=200, abandoned=100)
    async with trio.open_nursery() as nursery:
        one, two, three = (Line(workers.share(Caller()), nursery) for _ in range(3))
        for _ in range(4):
            await one.want()
        for line in (two, two, three):
            await line.want()
        ran = list[Line]()
        for _ in range(7):
            (line,) = [line for line in (one, two, three) if line.running]
            ran.append(line)
            await line.end()
    assert ran == [one, one, two, three, one, two, one]
    assert one.order == [0, 1, 2, 3]


async def test_connection_leaves_as_many_worker_threads_free_for_other_connections_as_it_uses() -> None:
    workers = Workers(running=12, asking=200, abandoned=100)
    async with trio.open_nursery() as nursery:
        one, two, three = (Line(workers.share(Caller()), nursery) for _ in range(3))
        for _ in range(12):
            await one.want()
        assert len(one.running) == 6
        for _ in range(12):
            await two.want()
        assert (len(one.running), len(two.running)) == (6, 3)
        for _ in range(3):
            await one.end()
        assert (len(one.running), len(two.running)) == (4, 4), "what one had while it was alone comes back"
        await three.want()
        assert len(three.running) == 1
        while one.running or two.running or three.running:
            await next(line for line in (one, two, three) if line.running).end()
    assert (one.count, len(one.order), len(two.order)) == (12, 12, 12)


async def test_connections_of_one_caller_together_get_worker_threads_as_often_as_another_caller() -> None:
    workers, many = Workers(running=1, asking=200, abandoned=100), Caller("many")
    async with trio.open_nursery() as nursery:
        shares = [workers.share(caller) for caller in (many.connection(), many.connection(), Caller("other"))]
        one, two, other = (Line(share, nursery) for share in shares)
        for line in (one, one, one, two, two, other, other):
            await line.want()
        ran = list[Line]()
        for _ in range(7):
            (line,) = [line for line in (one, two, other) if line.running]
            ran.append(line)
            await line.end()
    assert ran == [one, one, other, two, other, one, two]
    assert not workers.queue


async def test_caller_with_many_connections_leaves_worker_threads_for_a_further_connection() -> None:
    workers, caller = Workers(running=40, asking=200, abandoned=100), Caller("one")
    async with trio.open_nursery() as nursery:
        lines = [Line(workers.share(caller.connection()), nursery) for _ in range(3)]
        for line in lines:
            for _ in range(20):
                await line.want()
        assert [len(line.running) for line in lines] == [14, 4, 2]
        for line in (lines[1], lines[2]):
            while line.waiting:
                next(iter(line.waiting.values())).cancel()
                await wait_all_tasks_blocked()
        while any(line.running for line in lines):
            await next(line for line in lines if line.running).end()
    assert (lines[0].count, len(lines[0].order)) == (20, 20)
    assert not workers.queue


async def test_client_that_is_the_only_client_of_a_server_gets_all_worker_threads() -> None:
    workers = Workers(running=3, asking=200, abandoned=100)
    async with trio.open_nursery() as nursery:
        line = Line(workers.share(Caller(alone=True)), nursery)
        for _ in range(3):
            await line.want()
    assert len(line.running) == 3


async def test_connection_with_abandoned_threads_gets_no_further_worker_thread() -> None:
    workers = Workers(running=4, asking=200, abandoned=2)
    async with trio.open_nursery() as nursery:
        one, two = Line(workers.share(Caller()), nursery), Line(workers.share(Caller()), nursery)
        await one.want()
        hanging = one.running.popleft()
        hanging.abandon(Hanging())
        await one.want()
        await two.want()
        assert (one.refused, len(one.running), len(two.running)) == (1, 0, 1)
        hanging.release_on_behalf_of(None)
        await one.want()
        assert len(one.running) == 1


async def test_worker_thread_continues_after_a_client_answer_even_if_too_many_threads_are_abandoned() -> None:
    workers = Workers(running=1, asking=200, abandoned=1)
    async with trio.open_nursery() as nursery:
        line = Line(workers.share(Caller(alone=True)), nursery)
        await line.want()
        asking = line.running.popleft()
        asking.ask()
        await line.want()
        nursery.start_soon(asking.resume)
        await wait_all_tasks_blocked()
        line.running.popleft().abandon(Hanging())
    assert workers.free(SlotState.RUNNING) == 0


async def test_server_request_from_a_worker_thread_is_refused_if_too_many_threads_await_clients() -> None:
    workers = Workers(running=40, asking=1, abandoned=100)
    async with trio.open_nursery() as nursery:
        line = Line(workers.share(Caller(alone=True)), nursery)
        await line.want()
        await line.want()
        line.running[0].ask()
        with pytest.raises(CodedError, match="too many handlers in threads wait for answers of clients"):
            line.running[1].ask()


async def test_log_message_about_abandoned_threads_counts_the_source_lines_where_most_threads_hang(
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers = Workers(running=40, asking=200, abandoned=13)
    share = workers.share(Caller(alone=True))

    def hang(number: int) -> WorkerSlot:
        place = WorkerSlot(share)
        place.run()
        place.abandon(HangingAt(number))
        return place

    places = [hang(number) for number in (*range(11), 7, 7)]
    for _ in range(2):
        with pytest.raises(CodedError) as caught:
            WorkerSlot(share).run()
        assert caught.value.code == TOO_BUSY
    [record] = caplog.records
    first, *others = record.getMessage().splitlines()
    assert first == (
        "plain def handlers are refused: 13 threads that were abandoned still run (max_abandoned_threads: 13)."
        " They are in:"
    )
    assert others == ["3 x place 7", *(f"1 x place {number}" for number in (0, 1, 2, 3, 4, 5, 6, 8, 9))]
    places[0].release_on_behalf_of(None)
    hang(5)
    with pytest.raises(CodedError):
        WorkerSlot(share).run()
    assert len(caplog.records) == 2, "another one was abandoned"
    assert "2 x place 5" in caplog.records[1].getMessage()
    assert "place 0\n" not in caplog.records[1].getMessage()


steps = st.tuples(st.sampled_from(["want", "want", "want", "end", "cancel", "abandon", "ask"]), st.integers(0, 2))


def callers_of_a_kind(kind: str) -> list[Caller]:
    one = Caller("one")
    if kind == "one caller":
        return [Caller(alone=True)]
    if kind == "callers":
        return [one, Caller("two"), Caller("three")]
    part = one.connection()
    return [part, one.connection(), Caller(within=part)]


@given(st.lists(steps, max_size=40), st.integers(1, 5), st.sampled_from(["one caller", "callers", "parts"]))
def test_call_under_random_use_gets_a_worker_thread_as_soon_as_the_limits_allow(
    steps: list[tuple[str, int]], threads: int, kind: str
) -> None:
    async def scenario() -> None:
        workers = Workers(running=threads, asking=3, abandoned=3)
        async with trio.open_nursery() as nursery:
            lines = [Line(workers.share(caller), nursery) for caller in callers_of_a_kind(kind)]
            elsewhere = list[WorkerSlot]()
            for word, whose in steps:
                line = lines[whose % len(lines)]
                if word == "want":
                    await line.want()
                elif word == "cancel" and line.waiting:
                    next(iter(line.waiting.values())).cancel()
                elif word == "end" and line.running:
                    await line.end()
                elif word == "abandon" and line.running:
                    elsewhere.append(line.running.popleft())
                    elsewhere[-1].abandon(Hanging())
                elif word == "ask" and line.running and line.share.may_have(SlotState.ASKING):
                    elsewhere.append(line.running.popleft())
                    elsewhere[-1].ask()
                await wait_all_tasks_blocked()
                assert sum(len(line.running) for line in lines) == threads - workers.free(SlotState.RUNNING) <= threads
                for line in lines:
                    assert line.order == sorted(line.order)
                    assert not (line.waiting and line.share.may_have(SlotState.RUNNING))
                    assert (line.share in line.share.queue) == bool(line.waiting)
                assert bool(workers.queue) == any(line.waiting for line in lines)
            for place in elsewhere:
                place.release_on_behalf_of(None)
            while busy := [line for line in lines if line.running]:
                await busy[0].end()
            for line in lines:
                assert not line.waiting
            for state in (SlotState.ASKING, SlotState.ABANDONED):
                assert workers.free(state) == 3
            assert workers.free(SlotState.RUNNING) == threads

    trio.run(scenario)
