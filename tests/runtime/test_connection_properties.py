"""Two connections back to back, under a virtual clock and any schedule: nothing is lost, answered late or left.

Calls start, run, nest back and forth, report progress, fail, and are given up at any moment, over a wire and
under limits of any size, and the connection ends in any way. The laws at the end of the file hold always.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable
from typing import Any, Literal

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.runtime.hosted import HostedConnection
from trio.testing import MockClock

from trio_mcp import CodedError, ConnectionLost, Limits, PeerError, Progress
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.runtime.exchange import Exchange
from trio_mcp.runtime.requests.host import LATER, Decision, RequestHost
from trio_mcp.runtime.requests.scope import RequestScope
from trio_mcp.runtime.transport import FramedTransport
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import NotificationReceived
from trio_mcp.state.requests import InboundRequest
from trio_mcp.transports.lines import memory_transport_pair

METHODS = {"client": "prompts/get", "server": "sampling/createMessage"}
QUIET = 10_000.0
"""Virtual seconds after which whatever was to happen has happened."""


@attrs.frozen
class Plan:
    """What one call is to do. Times are in seconds; small integers, so that many things happen in one tick."""

    start: int
    give_up: int | None
    """The caller's limit."""
    work: int
    end: Literal["result", "error", "crash"]
    stubborn: bool
    """The handler swallows its cancellation and returns."""
    cleanup: int
    reports: int
    padding: int
    """Bytes that make it large on the wire, both ways."""
    nested: tuple[Plan, ...]
    """What the handler calls at its caller, side by side, before it ends."""


def plans(depth: int) -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        start=st.integers(0, 4),
        give_up=st.none() | st.integers(0, 6),
        work=st.integers(0, 5),
        end=st.sampled_from(["result", "result", "error", "crash"]),
        stubborn=st.booleans(),
        cleanup=st.sampled_from([0, 0, 1, 30]),
        reports=st.integers(0, 3),
        padding=st.sampled_from([0, 0, 500, 5000]),
        nested=st.just(()) if depth == 0 else st.lists(plans(depth - 1), max_size=2).map(tuple),
    )


@attrs.frozen
class Schedule:
    """Everything that is drawn."""

    calls: list[Plan]
    capacity: int
    high_water: int
    max_in_flight: int
    max_queued: int
    at_once: int
    """Bytes of a line that the wire takes at once."""
    end: Literal[
        "quiet", "client closes", "server shuts down", "wire is cut", "client is cancelled", "server is cancelled"
    ]
    end_at: int


ENDS = [
    "quiet",
    "quiet",
    "client closes",
    "server shuts down",
    "wire is cut",
    "client is cancelled",
    "server is cancelled",
]


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    # A call from the client that comes back to it and then to us once more holds a slot while it waits for one.
    # Where slots are few, such calls wait for each other for ever, as with every limit that is held while waiting.
    max_in_flight = draw(st.sampled_from([1, 2, 1000]))
    return Schedule(
        calls=draw(st.lists(plans(2 if max_in_flight == 1000 else 1), min_size=1, max_size=6)),
        capacity=draw(st.sampled_from([1, 300, 65536])),
        high_water=draw(st.sampled_from([1, 300, 16384])),
        max_in_flight=max_in_flight,
        max_queued=draw(st.sampled_from([0, 2, 1000])),
        at_once=draw(st.sampled_from([0, 1, 60, 65536])),
        end=draw(st.sampled_from(ENDS)),
        end_at=draw(st.integers(0, 8)),
    )


class Tap(FramedTransport):
    """A channel that notes what its side has sent, message by message. It takes ``sync_method`` bytes of a line at most
    without waiting."""

    def __init__(self, channel: FramedTransport, at_once: int) -> None:
        self._channel = channel
        self._at_once = at_once
        self._begun = b""
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> bytes | bytearray:
        return await self._channel.receive()

    async def send(self, messages: bytes | bytearray) -> None:
        messages, self._begun = self._begun + messages, b""
        self.sent += [json.loads(line) for line in bytes(messages).split(b"\n") if line]
        await self._channel.send(messages)

    def send_nowait(self, message: bytes) -> int:
        assert not self._begun, "the rest of a line comes first"
        if self._at_once < len(message):
            self._begun = message[: self._at_once]
            return self._at_once
        count = self._channel.send_nowait(message)
        if count:
            self.sent.append(json.loads(message))
        return count

    async def aclose(self) -> None:
        await self._channel.aclose()


class Side:
    """One side of the connection: its handlers, and its callers."""

    seal = None

    def __init__(
        self, role: Literal["client", "server"], channel: FramedTransport, at_once: int, world: World, limits: Limits
    ) -> None:
        self.role = role
        self.world = world
        self.tap = Tap(channel, at_once)
        self.state = ConnectionState(role)
        self.state.revision = LATEST_LEGACY
        self.state.initialized = True
        self.connection = HostedConnection(self.tap, self.state, self, RequestHost(limits))

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        return LATER

    def wants(self, event: NotificationReceived) -> bool:
        return False

    async def notified(self, event: NotificationReceived) -> None:
        raise AssertionError

    def answer(self, scope: RequestScope) -> Awaitable[Any]:
        return self._answer(scope, scope.request.params["key"])

    async def _answer(self, scope: RequestScope, key: int) -> Any:
        world, plan = self.world, self.world.plans[key]
        world.started[key] += 1
        try:
            for report in range(plan.reports):
                scope.progress(report + 1)
            async with trio.open_nursery() as nursery:
                for nested in plan.nested:
                    nursery.start_soon(self.call, nested)
                await trio.sleep(plan.work)
        except BaseException:
            if not (plan.stubborn and scope.is_cancelled):
                raise
        finally:
            if scope.is_cancelled:
                with trio.CancelScope(shield=True):
                    await trio.sleep(plan.cleanup)
                world.cancelled_handlers.append((self.role, scope.request.id))
            world.ended[key] += 1
        match plan.end:
            case "error":
                raise CodedError(1000 + key, "as planned")
            case "crash":
                raise LookupError(f"planned crash {key}")
            case "result":
                return {"key": key, "padding": "x" * plan.padding}

    async def call(self, plan: Plan) -> None:
        """Call the other side as planned, and note how that ended."""
        world, key = self.world, self.world.key_of(plan)
        outcome, seen = "cancelled", list[float]()
        try:
            await trio.sleep(plan.start)
            with trio.move_on_after(math.inf if plan.give_up is None else plan.give_up):
                outcome = await self._outcome(plan, key, seen)
        finally:
            world.outcomes[key].append(outcome)
            assert seen == sorted(set(seen))

    async def _outcome(self, plan: Plan, key: int, seen: list[float]) -> str:
        def on_progress(progress: Progress) -> None:
            assert not self.world.outcomes[key], "progress after the end"
            seen.append(progress.progress)

        params = {"key": key, "padding": "x" * plan.padding}
        try:
            result = await self.connection.request(METHODS[self.role], params, LATEST_LEGACY, on_progress=on_progress)
        except PeerError as error:
            return f"error {error.code}"
        except ConnectionLost:
            return "lost"
        assert result == params, "somebody else's answer"
        return "result"


class World:
    """What happened."""

    def __init__(self) -> None:
        self.plans: dict[int, Plan] = {}
        self.keys: dict[int, int] = {}
        self.outcomes: dict[int, list[str]] = defaultdict(list)
        self.started: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.cancelled_handlers: list[tuple[str, Any]] = []

    def number(self, plan: Plan) -> None:
        """Give ``plan`` and all nested in it their keys; equal plans have different ones."""
        self.keys[id(plan)] = len(self.keys)
        self.plans[self.keys[id(plan)]] = plan
        for nested in plan.nested:
            self.number(nested)

    def key_of(self, plan: Plan) -> int:
        return self.keys[id(plan)]


async def play(schedule: Schedule) -> None:
    limits = Limits(
        high_water=schedule.high_water,
        max_in_flight=schedule.max_in_flight,
        max_queued=schedule.max_queued,
        drain_timeout=3,
        cleanup_grace=5,
    )
    world = World()
    for plan in schedule.calls:
        world.number(plan)
    ours, theirs = memory_transport_pair(schedule.capacity)
    client = Side("client", ours, schedule.at_once, world, limits)
    server = Side("server", theirs, schedule.at_once, world, limits)
    scopes = {client: trio.CancelScope(), server: trio.CancelScope()}

    async def run(side: Side) -> None:
        with scopes[side]:
            await side.connection.run()

    async def end() -> None:
        await trio.sleep(QUIET if schedule.end == "quiet" else schedule.end_at)
        match schedule.end:
            case "quiet":
                # Nothing has ended yet, and still nothing is left.
                assert_nothing_is_in_flight(client, server)
                await client.connection.close("over")
            case "client closes":
                await client.connection.close("over")
            case "server shuts down":
                server.connection.shut_down("over")
            case "wire is cut":
                await ours.aclose()
            case "client is cancelled":
                scopes[client].cancel()
            case "server is cancelled":
                scopes[server].cancel()

    with trio.fail_after(10 * QUIET):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, client)
            nursery.start_soon(run, server)
            nursery.start_soon(end)
            for plan in schedule.calls:
                nursery.start_soon(client.call, plan)
    assert_nothing_is_in_flight(client, server)
    assert_every_call_was_settled_once(world)
    assert_every_handler_has_ended(world)
    assert_cancelled_requests_were_not_answered(world, client, server)
    for caller, handler in ((client, server), (server, client)):
        assert_the_wire_is_in_order(caller.tap.sent, handler.tap.sent)
    if schedule.end == "quiet":
        assert_undisturbed_calls_ended_as_planned(world, limits)


@settings(max_examples=examples(150))
@given(schedules())
def test_every_call_ends_exactly_once_in_any_order_of_connection_events(schedule: Schedule) -> None:
    schedule = attrs.evolve(schedule, calls=[_copy(plan) for plan in schedule.calls])
    quiet = logging.getLogger("trio_mcp")
    quiet.disabled = True
    try:
        trio.run(play, schedule, clock=MockClock(autojump_threshold=0))
    finally:
        quiet.disabled = False


def _copy(plan: Plan) -> Plan:
    # hypothesis may give the same object twice, and plans are told apart by their identity.
    return attrs.evolve(plan, nested=tuple(_copy(nested) for nested in plan.nested))


# The laws


def assert_nothing_is_in_flight(*sides: Side) -> None:
    for side in sides:
        assert side.state.inbound == ()
        assert side.state.outbound == ()


def assert_every_call_was_settled_once(world: World) -> None:
    assert all(len(outcomes) == 1 for outcomes in world.outcomes.values()), world.outcomes


def assert_every_handler_has_ended(world: World) -> None:
    assert world.started == world.ended
    assert all(count == 1 for count in world.started.values())


def assert_cancelled_requests_were_not_answered(world: World, *sides: Side) -> None:
    for side in sides:
        answered = {message["id"] for message in side.tap.sent if "method" not in message}
        cancelled = {request_id for role, request_id in world.cancelled_handlers if role == side.role}
        assert not answered & cancelled


def assert_the_wire_is_in_order(asked: list[dict[str, Any]], told: list[dict[str, Any]]) -> None:
    """``asked`` are all messages of the caller's side, ``told`` all of the handler's."""
    requests = [message["id"] for message in asked if "method" in message and "id" in message]
    assert len(requests) == len(set(requests)), "an id was used twice"
    cancels = [m["params"]["requestId"] for m in asked if m.get("method") == "notifications/cancelled"]
    assert len(cancels) == len(set(cancels)), "cancelled twice"
    assert set(cancels) <= set(requests), "cancelled what was never sent"
    replies = [message["id"] for message in told if "method" not in message]
    assert len(replies) == len(set(replies)), "answered twice"
    assert set(replies) <= set(requests), "answered what was never asked"
    values: dict[Any, list[float]] = defaultdict(list)
    for message in told:
        if "method" not in message:
            values[message["id"]].append(math.inf)
        elif message["method"] == "notifications/progress":
            values[message["params"]["progressToken"]].append(message["params"]["progress"])
    assert set(values) <= set(requests)
    for reported in values.values():
        assert reported == sorted(set(reported)), "progress that does not increase, or comes after the answer"


def assert_undisturbed_calls_ended_as_planned(world: World, limits: Limits) -> None:
    """Without limits in the way, whoever did not give up got what its handler gave."""
    if limits.max_in_flight < 1000:
        return
    given_up = {key for key, outcomes in world.outcomes.items() if outcomes == ["cancelled"]}
    for key, (outcome,) in world.outcomes.items():
        plan = world.plans[key]
        planned = {"result": "result", "error": f"error {1000 + key}", "crash": "error -32603"}[plan.end]
        assert outcome == planned or key in given_up
        if plan.give_up is None and key in given_up:  # so its parent was cancelled or failed
            assert any(world.key_of(nested) == key for parent in world.plans.values() for nested in parent.nested)
