"""A client and a server with a bad wire between them, under a virtual clock: nothing hangs, nothing is left.

Messages are held up, lost, repeated, garbled and cut off, and the connection breaks, anywhere and any number of
times, from the first message on. The laws at the end of the file hold always.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Literal, Unpack

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from trio.testing import MockClock

from trio_mcp import (
    Client,
    ConnectionLost,
    KeepAlive,
    Limits,
    PeerError,
    ProtocolViolation,
    RequestContext,
    Server,
    open_client,
)
from trio_mcp.runtime.transport import Transport
from trio_mcp.testing import (
    Cut,
    Delay,
    Disconnect,
    Drop,
    Duplicate,
    Fault,
    FaultyChannel,
    Garble,
    MessageInTransit,
    RandomFaults,
    memory_transport_pair,
    open_server,
)
from trio_mcp.types import ClientOptions, ElicitResult, LogParams

LIMITS = [
    Limits(drain_timeout=3, cleanup_grace=5),
    Limits(drain_timeout=3, cleanup_grace=5, high_water=1, max_in_flight=1, max_queued=2),
    Limits(drain_timeout=0, cleanup_grace=0, high_water=300, max_pending_notifications=2),
]
KEEP_ALIVE = KeepAlive(interval=10, timeout=3)
CONNECT = 20.0
"""Seconds the client has for its opening."""
LONGEST = 60
"""Seconds the most patient caller waits."""
SETTLED = 250.0
"""Seconds after the client has closed in which a server is done by itself: all delays, a drain and a cleanup."""
BOUND = 1000.0
"""Seconds after which all is over, or hangs: an opening, the delays, a call and what follows take no longer."""
PROMPT = 15.0
"""Seconds after the loss of the connection in which every call has ended: callbacks may still run for a while."""


@attrs.frozen
class Plan:
    """What one call is to do. Times are in seconds."""

    start: int
    patience: int
    work: int
    reports: int
    asks: bool
    """The handler asks the client's user before it ends."""
    cleanup: int
    stubborn: bool
    """The handler swallows its cancellation and returns."""
    padding: int


@attrs.frozen
class Schedule:
    """Everything that is drawn. Faults are per side, by direction and number of the message."""

    era: Literal["legacy", "modern", "auto"]
    calls: list[Plan]
    capacity: int
    """Bytes the wire holds each way."""
    limits: Limits
    keep_alive: bool
    at_client: dict[tuple[str, int], Fault]
    at_server: dict[tuple[str, int], Fault]


PLANS = st.builds(
    Plan,
    start=st.integers(0, 5),
    patience=st.integers(0, LONGEST),
    work=st.integers(0, 8),
    reports=st.integers(0, 3),
    asks=st.booleans(),
    cleanup=st.sampled_from([0, 0, 1, 20]),
    stubborn=st.booleans(),
    padding=st.sampled_from([0, 0, 5000]),
)
FAULTS: st.SearchStrategy[Fault] = st.one_of(
    st.builds(Drop),
    st.builds(Duplicate),
    st.builds(Delay, st.integers(0, 30)),
    st.builds(Garble, st.floats(0, 1)),
    st.builds(Cut, st.floats(0, 1)),
    st.builds(Disconnect),
)
FAULTS_OF_A_SIDE = st.dictionaries(
    st.tuples(st.sampled_from(["sent", "received"]), st.integers(0, 25)), FAULTS, max_size=6
)
SCHEDULES = st.builds(
    Schedule,
    era=st.sampled_from(["legacy", "modern", "auto"]),
    calls=st.lists(PLANS, min_size=1, max_size=5),
    capacity=st.sampled_from([1, 300, 65536]),
    limits=st.sampled_from(LIMITS),
    keep_alive=st.booleans(),
    at_client=FAULTS_OF_A_SIDE,
    at_server=FAULTS_OF_A_SIDE,
)


class World:
    """What happened."""

    def __init__(self, calls: list[Plan], limits: Limits) -> None:
        self.calls = calls
        self.outcomes: dict[int, list[str]] = {number: [] for number in range(len(calls))}
        self.started: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.server = Server("faulty", limits=limits)
        self.server.tool(self.work)
        self.client: Client | None = None
        self.ended_at: dict[int, float] = {}
        self.lost_at = math.inf

    async def work(self, number: int, padding: str, ctx: RequestContext) -> str:
        """The handler of call ``number``."""
        plan = self.calls[number]
        self.started[number] += 1
        try:
            for report in range(plan.reports):
                ctx.progress(report + 1)
                await ctx.log.error({"report": report, "padding": padding})
            await trio.sleep(plan.work)
            if plan.asks and ctx.client_supports("elicitation"):
                await ctx.elicit("go on?", {"type": "object", "properties": {}})
        except trio.Cancelled:
            if not plan.stubborn:
                raise
        finally:
            if ctx.is_cancelled:
                with trio.CancelScope(shield=True):
                    await trio.sleep(plan.cleanup)
            self.ended[number] += 1
        return f"{number} {padding}"

    async def call(self, client: Client, number: int) -> None:
        """Call as planned, and note how that ended."""
        plan = self.calls[number]
        await trio.sleep(plan.start)
        outcome = "gave up"
        with trio.move_on_after(plan.patience):
            outcome = await self._outcome(client, number, "x" * plan.padding)
        self.outcomes[number].append(outcome)
        self.ended_at[number] = trio.current_time()

    def befall(self, faults: dict[tuple[str, int], Fault], passage: MessageInTransit) -> Fault | None:
        """What happens to a message at the client's end; note when that is the loss of its connection."""
        fault = faults.get((passage.direction, passage.number))
        if isinstance(fault, Cut | Disconnect):
            self.lost_at = min(self.lost_at, trio.current_time())
        return fault

    async def _outcome(self, client: Client, number: int, padding: str) -> str:
        def on_progress(_: object) -> None:
            assert not self.outcomes[number], "progress after the end"

        try:
            result = await client.call_tool("work", {"number": number, "padding": padding}, on_progress=on_progress)
        except (ConnectionLost, PeerError, ProtocolViolation) as error:
            return type(error).__name__
        if result.is_error:
            return "failed"
        assert result.text == f"{number} {padding}", "somebody else's answer"
        return "result"


async def play(schedule: Schedule) -> World:
    world = World(schedule.calls, schedule.limits)
    ours, theirs = memory_transport_pair(schedule.capacity)
    at_client = FaultyChannel(ours, partial(world.befall, schedule.at_client))
    at_server = FaultyChannel(theirs, lambda passage: schedule.at_server.get((passage.direction, passage.number)))
    keep_alive = KEEP_ALIVE if schedule.keep_alive else None
    await talk(world, at_client, at_server, era=schedule.era, limits=schedule.limits, keep_alive=keep_alive)
    return world


async def talk(world: World, ours: Transport, theirs: Transport, **options: Unpack[ClientOptions]) -> None:
    """A whole connection, from its opening to the last cleanup."""
    with trio.fail_after(BOUND):
        async with open_server(world.server, theirs):
            try:
                async with opened(world, ours, **options) as client, trio.open_nursery() as nursery:
                    for number in range(len(world.calls)):
                        nursery.start_soon(world.call, client, number)
            except (ConnectionLost, PeerError, ProtocolViolation, trio.TooSlowError):
                assert world.client is None, "the opening may fail; after that only calls do"
            await trio.sleep(SETTLED)
            assert_nothing_is_left(world)


@asynccontextmanager
async def opened(world: World, channel: Transport, **options: Unpack[ClientOptions]) -> AsyncGenerator[Client]:
    async def elicitation(_: object) -> ElicitResult:
        await trio.sleep(1)
        return ElicitResult("accept", {})

    async def on_log(_: LogParams) -> None:
        await trio.sleep(0.5)

    handlers: ClientOptions = {"elicitation": elicitation, "on_log": on_log, "connect_timeout": CONNECT}
    async with open_client(channel, **{**options, **handlers}) as client:
        world.client = client
        yield client


@contextmanager
def quiet() -> Generator[None]:
    logger = logging.getLogger("trio_mcp")
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


@settings(max_examples=examples(200))
@given(SCHEDULES)
def test_call_over_a_faulty_transport_never_hangs_or_leaves_tasks(schedule: Schedule) -> None:
    with quiet():
        world = trio.run(play, schedule, clock=MockClock(autojump_threshold=0))
    if world.client is not None:
        assert_every_call_ended_once(world)
    faults = [*schedule.at_client.values(), *schedule.at_server.values()]
    if schedule.limits is not LIMITS[0] or schedule.keep_alive:
        return  # calls may have been refused, and a slow wire taken for a dead one
    if all(isinstance(fault, Delay) for fault in faults) and world.client is not None:
        assert_no_call_was_lost(world)
    if not faults:
        assert_undisturbed_calls_ended_as_planned(world)


@pytest.mark.parametrize("seed", range(40))
def test_every_call_over_a_randomly_faulty_transport_ends_exactly_once(seed: int) -> None:
    plan = RandomFaults(
        seed, delay=0.1, drop=0.03, duplicate=0.05, garble=0.03, cut=0.005, disconnect=0.005, max_delay=3, after=4
    )
    calls = [Plan(number % 7, LONGEST, number % 5, 3, number % 3 == 0, 1, False, 100) for number in range(25)]

    async def run() -> World:
        ours, theirs = memory_transport_pair()
        world = World(calls, LIMITS[0])
        await talk(world, FaultyChannel(ours, plan), theirs, era="legacy" if seed % 2 else "modern")
        return world

    with quiet():
        world = trio.run(run, clock=MockClock(autojump_threshold=0))
    assert_every_call_ended_once(world)


# The laws


def assert_nothing_is_left(world: World) -> None:
    now = world.server.statistics()
    assert (now.connections, now.in_flight, now.queued) == (0, 0, 0)
    assert world.started == world.ended, "a handler was left running"
    if world.client is not None:
        assert world.client._connection.state.outbound == ()
        assert world.client._connection.state.inbound == ()


def assert_every_call_ended_once(world: World) -> None:
    assert all(len(outcomes) == 1 for outcomes in world.outcomes.values()), world.outcomes
    assert max(world.ended_at.values()) <= world.lost_at + PROMPT, "a call outlived its connection"


def assert_no_call_was_lost(world: World) -> None:
    """A slow wire costs time, and nothing else."""
    assert {outcome for outcomes in world.outcomes.values() for outcome in outcomes} <= {"result", "gave up"}


def assert_undisturbed_calls_ended_as_planned(world: World) -> None:
    for number, outcomes in world.outcomes.items():
        plan = world.calls[number]
        # Every log message of every call takes its callback half a second, and calls wait for those before theirs.
        latest = plan.work + 1 + sum(call.reports for call in world.calls) / 2
        assert outcomes == ["result"] or plan.patience <= latest
        assert world.started[number] == 1 or plan.patience == 0
