"""After a server reported "stopped", no line of the handler runs. Random handlers and random moments of the cancel."""

from __future__ import annotations

from typing import Any, Literal, cast

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from trio_mcp import CancelAcknowledged, Limits, Server, confirm_cancels, open_memory
from trio_mcp.types import CallEnding

Era = Literal["modern", "legacy"]
SAID = {"stopped", "finished", "overran", "unsent"}


@attrs.frozen
class Handler:
    """What one handler does: some tasks work, and each cleans up for a while, shielded or not, in its own way."""

    tasks: list[tuple[float, float, Literal["raise", "swallow", "return", "unshielded"]]]
    work: float

    async def run(self, lines: list[float]) -> str:
        async with trio.open_nursery() as nursery:
            for work, cleanup, way in self.tasks:
                nursery.start_soon(self._task, lines, work, cleanup, way)
            await trio.sleep(self.work)
            lines.append(trio.current_time())
        lines.append(trio.current_time())
        return "done"

    async def _task(self, lines: list[float], work: float, cleanup: float, way: str) -> None:
        try:
            await trio.sleep(work)
        except trio.Cancelled:
            if way == "swallow":
                raise ValueError("something else") from None
            raise
        finally:
            with trio.CancelScope(shield=way != "unshielded"):
                await trio.sleep(cleanup)
            lines.append(trio.current_time())


times = st.floats(0, 4, allow_nan=False).map(lambda value: round(value, 2))
handlers = st.builds(
    Handler,
    st.lists(st.tuples(times, times, st.sampled_from(["raise", "swallow", "return", "unshielded"])), max_size=3),
    times,
)


async def run(era: Era, calls: list[tuple[Handler, float]], within: float) -> None:
    server = Server("any", extensions=[CancelAcknowledged()], limits=Limits(cleanup_grace=1, max_in_flight=2))
    lines: dict[int, list[float]] = {number: [] for number in range(len(calls))}

    @server.tool
    async def work(number: int) -> str:
        return await calls[number][0].run(lines[number])

    stopped: dict[int, int] = {}

    async def call(number: int, patience: float) -> None:
        with confirm_cancels(within=within) as endings:
            began = trio.current_time()
            with trio.move_on_after(patience) as scope:
                await client.call_tool("work", {"number": number})
            assert trio.current_time() - began <= patience + within + 0.01
        states = [cast("CallEnding", each).state for each in endings]
        assert len(states) == scope.cancelled_caught
        assert set(states) <= SAID
        if states == ["stopped"]:
            stopped[number] = len(lines[number])
            if endings[0].never_ran:
                assert lines[number] == []
        if states == ["finished"]:
            assert lines[number]

    async with open_memory(server, era=era, extensions=[CancelAcknowledged()]) as client:
        async with trio.open_nursery() as nursery:
            for number, (_, patience) in enumerate(calls):
                nursery.start_soon(call, number, patience)
        await trio.sleep(30)
        assert {number: len(lines[number]) for number in stopped} == stopped


@pytest.mark.parametrize("era", ["modern", "legacy"])
@settings(max_examples=examples(150), deadline=None)
@given(calls=st.lists(st.tuples(handlers, times), min_size=1, max_size=4), within=st.sampled_from([0.5, 2.0, 20.0]))
def test_handler_runs_no_code_after_its_cancel_is_confirmed_as_stopped(
    era: Era, calls: list[tuple[Handler, float]], within: float
) -> None:
    trio.run(run, era, calls, within, clock=trio.testing.MockClock(autojump_threshold=0))


async def cross(era: Era, steps: int) -> tuple[str, int, int]:
    """The ending of a call that is left after so many steps of the scheduler, and how far its handler came."""
    server = Server("short", extensions=[CancelAcknowledged()])
    reached = 0

    @server.tool
    async def short() -> str:
        nonlocal reached
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            reached += 1
        return "done"

    async with open_memory(server, era=era, extensions=[CancelAcknowledged()]) as client:
        with confirm_cancels() as endings:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "short")
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        told = reached
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        return endings[0].state if endings else "returned", told, reached


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_confirm_cancels_reports_the_true_outcome_if_the_reply_arrives_during_the_cancel(era: Era) -> None:
    async def all_steps() -> set[str]:
        seen: set[str] = set()
        for steps in range(25):
            for _ in range(4):  # trio runs tasks that are ready in any order
                state, told, reached = await cross(era, steps)
                seen.add(state)
                assert state in SAID | {"returned"}
                assert told == reached
                if state in ("finished", "returned"):
                    assert told == 3
        return seen

    seen: Any = trio.run(all_steps)
    assert {"unsent", "stopped", "returned"} <= seen
