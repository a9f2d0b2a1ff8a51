from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Limits
from trio_mcp.concurrency.fair_share import Caller
from trio_mcp.protocol.methods import METHODS, Method
from trio_mcp.runtime.exchange import Exchange
from trio_mcp.runtime.limits import Load
from trio_mcp.runtime.outbox import Outbox
from trio_mcp.runtime.peer import Peer
from trio_mcp.runtime.requests.admission import Admission, Ticket
from trio_mcp.state.connection import ConnectionState


@attrs.define(eq=False)
class FakeRequest:
    size: int = 1
    method: Method = METHODS["tools/call"]


@attrs.define(eq=False)
class FakeScope:
    """Of a request, only what admission and exchange look at."""

    request: FakeRequest = attrs.field(factory=FakeRequest)
    ticket: Ticket | None = None

    def abort(self, cause: Any, reason: Any) -> None:
        raise AssertionError


class InFlight:
    """An `Admission` and the `Exchange` that holds its requests, used together as `RequestRunner` does."""

    def __init__(self, limits: Limits, start: Callable[[FakeScope], None], load: Load, caller: Caller) -> None:
        self.admission = Admission[FakeScope](limits, load)
        self.caller = caller
        self.exchange: Any = Exchange(ConnectionState("server"), Outbox(100), Peer())
        self.start = start

    def __len__(self) -> int:
        return len(self.exchange._held)

    def __iter__(self) -> Iterator[FakeScope]:
        return iter(tuple(self.exchange._held.values()))

    def find(self, request: FakeRequest) -> Any:
        return self.exchange.find(request)

    def admit(self, scope: FakeScope) -> bool:
        request: Any = scope.request
        scope.ticket = self.admission.admit(request, self.caller)
        if scope.ticket is None:
            return False
        self.exchange.hold(scope.request, scope)
        if scope.ticket.runs:
            self.start(scope)
        else:
            self.admission.wait(scope.ticket, scope)
        return True

    def drop_waiting(self, scope: FakeScope) -> bool:
        assert scope.ticket is not None
        if not self.admission.drop_waiting(scope.ticket):
            return False
        self.exchange.release(scope.request)
        return True

    def release_slot(self, scope: FakeScope) -> None:
        assert scope.ticket is not None
        for ready in self.admission.release_slot(scope.ticket):
            self.start(ready)

    def ended(self, scope: FakeScope) -> None:
        assert scope.ticket is not None
        self.exchange.release(scope.request)
        for ready in self.admission.release(scope.ticket):
            self.start(ready)

    async def idle(self) -> None:
        await self.exchange.idle()

    async def streams_idle(self) -> None:
        await self.exchange.streams_idle()

    @property
    def waiting(self) -> int:
        return self.admission.waiting


class Floor:
    """An `InFlight` and who was started."""

    def __init__(self, load: Load | None = None, *, caller: Caller | None = None, **limits: Any) -> None:
        self.started: list[FakeScope] = []
        self.load = load or Load()
        self.in_flight: Any = InFlight(Limits(**limits), self.started.append, self.load, caller or Caller())

    def admit(self, count: int, size: int = 1) -> list[FakeScope]:
        scopes = [FakeScope(FakeRequest(size)) for _ in range(count)]
        for scope in scopes:
            assert self.in_flight.admit(scope)
        return scopes


def test_requests_start_immediately_while_request_slots_are_free() -> None:
    floor = Floor(max_in_flight=3)
    scopes = floor.admit(3)
    assert floor.started == scopes


def test_requests_beyond_the_free_slots_are_queued_and_start_in_order() -> None:
    floor = Floor(max_in_flight=1)
    first, second, third = floor.admit(3)
    assert floor.started == [first]
    assert floor.in_flight.waiting == 2
    floor.in_flight.ended(first)
    assert floor.started == [first, second]
    floor.in_flight.ended(second)
    assert floor.started == [first, second, third]


def test_requests_beyond_the_queue_limit_are_refused_and_not_counted() -> None:
    floor = Floor(max_in_flight=1, max_queued=1)
    floor.admit(2)
    refused = FakeScope()
    assert not floor.in_flight.admit(refused)
    assert floor.in_flight.find(refused.request) is None
    assert len(floor.in_flight) == 2


def test_requests_that_exceed_the_slots_are_refused_if_the_queue_limit_is_zero() -> None:
    floor = Floor(max_in_flight=1, max_queued=0)
    [first] = floor.admit(1)
    assert not floor.in_flight.admit(FakeScope())
    floor.in_flight.ended(first)
    assert floor.in_flight.admit(FakeScope())


def test_byte_limit_includes_running_and_queued_requests() -> None:
    floor = Floor(max_in_flight=1, max_inbound_bytes=100)
    first, _ = floor.admit(2, size=50)
    assert not floor.in_flight.admit(FakeScope())
    floor.in_flight.ended(first)
    assert floor.in_flight.admit(FakeScope())


def test_request_larger_than_the_byte_limit_is_admitted_if_no_other_request_runs() -> None:
    floor = Floor(max_inbound_bytes=100)
    floor.admit(1, size=1000)
    assert not floor.in_flight.admit(FakeScope())


def test_request_removed_from_the_queue_never_runs() -> None:
    floor = Floor(max_in_flight=1)
    first, second, third = floor.admit(3)
    assert floor.in_flight.drop_waiting(second)
    assert not floor.in_flight.drop_waiting(second)
    assert not floor.in_flight.drop_waiting(first)
    floor.in_flight.ended(first)
    assert floor.started == [first, third]


def test_request_slot_can_be_released_early_but_only_once() -> None:
    floor = Floor(max_in_flight=1)
    first, second, third = floor.admit(3)
    floor.in_flight.release_slot(first)
    floor.in_flight.release_slot(first)
    assert floor.started == [first, second]
    floor.in_flight.ended(first)
    assert floor.started == [first, second]
    floor.in_flight.ended(second)
    assert floor.started == [first, second, third]


def test_request_slot_is_freed_only_once_even_if_the_end_of_a_request_is_reported_twice() -> None:
    floor = Floor(max_in_flight=1)
    first, second, third = floor.admit(3)
    floor.in_flight.ended(first)
    floor.in_flight.ended(first)
    assert floor.started == [first, second]
    assert third in floor.in_flight


def test_admitted_requests_that_run_are_listed_oldest_first() -> None:
    floor = Floor(max_in_flight=2)
    scopes = floor.admit(4)
    floor.in_flight.ended(scopes[1])
    assert list(floor.in_flight) == [scopes[0], *scopes[2:]]
    assert floor.in_flight.find(scopes[3].request) is scopes[3]
    assert floor.in_flight.find(scopes[1].request) is None


def test_server_load_counts_admitted_requests_and_returns_to_zero_when_they_end() -> None:
    floor = Floor(max_in_flight=2)
    first, second, third, fourth = floor.admit(4, size=10)
    assert (floor.load.in_flight, floor.load.queued, floor.load.inbound_bytes) == (2, 2, 40)
    floor.in_flight.drop_waiting(third)
    floor.in_flight.release_slot(first)
    assert (floor.load.in_flight, floor.load.queued, floor.load.inbound_bytes) == (2, 0, 30)
    for scope in (first, second, fourth):
        floor.in_flight.ended(scope)
    assert (floor.load.in_flight, floor.load.queued, floor.load.inbound_bytes) == (0, 0, 0)


def test_running_requests_can_be_ended_while_a_loop_iterates_over_all_requests() -> None:
    floor = Floor(max_in_flight=1)
    floor.admit(3)
    for scope in floor.in_flight:
        floor.in_flight.ended(scope)
    assert len(floor.in_flight) == 0


async def test_wait_until_a_connection_is_idle_ends_when_its_last_request_ends() -> None:
    floor = Floor()
    first, second = floor.admit(2)
    ended: list[str] = []
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            await floor.in_flight.idle()
            ended.append("idle")

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        floor.in_flight.ended(first)
        await wait_all_tasks_blocked()
        assert ended == []
        floor.in_flight.ended(second)
    assert ended == ["idle"]


async def test_wait_until_a_connection_is_idle_ends_immediately_if_no_request_runs() -> None:
    with trio.fail_after(PATIENCE):
        await Floor().in_flight.idle()


def stream(size: int = 1) -> FakeScope:
    return FakeScope(FakeRequest(size, METHODS["subscriptions/listen"]))


def test_listen_streams_start_immediately_and_do_not_occupy_a_request_slot() -> None:
    floor = Floor(max_in_flight=1, max_queued=0)
    streams = [stream(), stream(), stream()]
    assert all(floor.in_flight.admit(one) for one in streams)
    assert floor.started == streams
    assert (floor.load.listening, floor.load.in_flight, floor.load.inbound_bytes) == (3, 0, 3)
    floor.admit(1)


def test_listen_streams_have_a_limit_separate_from_the_request_limit() -> None:
    floor = Floor(max_subscriptions=2)
    first, second, third = stream(), stream(), stream()
    assert floor.in_flight.admit(first)
    assert floor.in_flight.admit(second)
    assert not floor.in_flight.admit(third)
    floor.in_flight.ended(first)
    floor.in_flight.ended(first)
    assert floor.in_flight.admit(third)
    assert not floor.in_flight.admit(stream())
    assert floor.load.listening == 2


def test_server_wide_stream_limit_is_separate_from_the_request_limit() -> None:
    floor = Floor(max_server_requests=1, max_server_streams=4, max_inbound_bytes=100)
    assert floor.in_flight.admit(stream(60))
    assert not floor.in_flight.admit(stream(60))
    assert floor.in_flight.admit(stream(30))
    assert not floor.in_flight.admit(stream(1)), "the other half is for others"
    floor.admit(1)
    assert not floor.in_flight.admit(FakeScope())


def test_one_connection_can_use_at_most_half_of_the_free_request_slots_of_the_server() -> None:
    greedy, other, third = floors(3, max_server_requests=12, max_server_streams=12, max_server_bytes=1200)
    for make in (FakeScope, stream):
        assert took(greedy, make) == 6
        assert took(other, make) == 3
        assert took(third, make) == 2
        assert took(greedy, make) == 0
    assert greedy.load.in_flight == greedy.load.listening == 11


def test_request_slots_that_one_connection_frees_are_available_to_other_connections() -> None:
    greedy, other = floors(2, max_server_requests=12)
    taken = greedy.admit(6)
    assert took(other, FakeScope) == 3
    for scope in taken[:3]:
        greedy.in_flight.ended(scope)
    assert took(greedy, FakeScope) == 2
    assert took(other, FakeScope) == 1


def test_client_that_is_the_only_client_of_a_server_can_use_the_whole_request_limit() -> None:
    (floor,) = floors(1, alone=True, max_server_requests=3, max_server_streams=3, max_server_bytes=6)
    assert took(floor, FakeScope) == took(floor, stream) == 3


def test_one_connection_can_use_at_most_half_of_the_unused_byte_limit_of_the_server() -> None:
    greedy, other = floors(2, max_server_bytes=100)
    greedy.admit(1, size=60)  # the first is taken in any case
    assert not greedy.in_flight.admit(FakeScope(FakeRequest(1)))
    other.admit(1, size=20)
    assert not other.in_flight.admit(FakeScope(FakeRequest(1)))


def floors(count: int, *, alone: bool = False, **limits: Any) -> list[Floor]:
    """So many connections of one server."""
    load = Load()
    return [Floor(load, caller=Caller(alone=alone), **limits) for _ in range(count)]


def took(floor: Floor, make: Callable[[], FakeScope]) -> int:
    """How many are taken until one is refused."""
    count = 0
    while floor.in_flight.admit(make()):
        count += 1
    return count


async def test_connection_that_waits_for_the_end_of_its_listen_streams_does_not_wait_for_requests() -> None:
    floor, ended = Floor(), list[str]()
    [request] = floor.admit(1)
    first, second = stream(), stream()
    assert floor.in_flight.admit(first)
    assert floor.in_flight.admit(second)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            await floor.in_flight.streams_idle()
            ended.append("streams")
            await floor.in_flight.idle()
            ended.append("all")

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        floor.in_flight.ended(first)
        await wait_all_tasks_blocked()
        assert ended == []
        floor.in_flight.ended(second)
        await wait_all_tasks_blocked()
        assert ended == ["streams"]
        floor.in_flight.ended(request)
    assert ended == ["streams", "all"]


@pytest.mark.parametrize("field", ["max_in_flight", "max_inbound_bytes"])
def test_request_limit_of_zero_raises_value_error(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Limits(**{field: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("alone", [True, False])
def test_bytes_of_a_request_that_awaits_input_are_counted_once_during_its_retry(alone: bool) -> None:
    admission, caller = Admission[object](Limits(max_inbound_bytes=100), Load()), Caller(alone=alone)
    request: Any = FakeRequest(60)
    parked = admission.admit(request, caller)
    assert parked is not None
    admission.park(parked)
    assert not admission.has_room(60, caller)
    assert admission.has_room(60, caller, parked)
    assert admission.has_room(100, caller, parked), "it is the only one"
    other: Any = FakeRequest(20)
    assert admission.admit(other, caller) is not None
    assert admission.has_room(80, caller, parked)
    assert not admission.has_room(81, caller, parked)


def test_running_request_reduces_the_remaining_byte_limit_of_its_caller_by_its_size() -> None:
    admission, caller = Admission[object](Limits(max_inbound_bytes=100), Load()), Caller()
    request: Any = FakeRequest(60)
    assert admission.admit(request, caller) is not None
    assert admission.has_room(40, caller)
    assert not admission.has_room(41, caller)


def test_request_limit_of_a_caller_includes_requests_on_all_its_connections() -> None:
    load, caller = Load(), Caller()
    bounds: dict[str, Any] = {"max_server_requests": 12, "max_server_streams": 12, "max_server_bytes": 12}
    one, two = (Floor(load, caller=caller, **bounds) for _ in range(2))
    other = Floor(load, **bounds)
    for make in (lambda: FakeScope(FakeRequest(0)), lambda: stream(0)):
        assert took(one, make) == 6
        assert took(two, make) == 0
        assert took(other, make) == 3
    assert (caller.requests, caller.streams) == (6, 6)
    for floor in (one, other):
        for scope in floor.in_flight:
            floor.in_flight.ended(scope)
    assert two.in_flight.admit(FakeScope(FakeRequest(6)))
    assert not one.in_flight.admit(FakeScope(FakeRequest(1)))
    assert other.in_flight.admit(FakeScope(FakeRequest(3)))
    assert (caller.requests, caller.streams, caller.bytes) == (1, 0, 6)


def test_each_request_on_a_shared_connection_counts_towards_the_limit_of_its_own_caller() -> None:
    admission, ada, eve = Admission[object](Limits(max_server_requests=6), Load()), Caller(), Caller()
    request: Any = FakeRequest(1)
    tickets = [admission.admit(request, eve) for _ in range(4)]
    assert tickets.count(None) == 1
    parked = tickets[0]
    assert parked is not None
    admission.park(parked)
    assert not admission.has_room(1, eve)
    assert admission.has_room(1, eve, parked), "its handler is counted already"
    admission.unpark(parked)
    admission.release(parked)
    assert admission.admit(request, ada) is not None
    assert (ada.requests, eve.requests, eve.bytes) == (1, 2, 2)
    admission.park(tickets[1])  # type: ignore[arg-type]
    assert (eve.requests, admission.has_room(1, ada, tickets[1])) == (2, True)


def test_request_that_has_ended_no_longer_counts_towards_the_limit_of_its_caller() -> None:
    floor = Floor(max_in_flight=1)
    admission, caller = floor.in_flight.admission, floor.in_flight.caller
    first, second, third = floor.admit(3)
    assert caller.requests == 3
    admission.clean_up(second.ticket)
    assert floor.in_flight.drop_waiting(third)
    assert caller.requests == 2
    floor.in_flight.release_slot(first)
    assert caller.requests == 1
    for scope in (first, second):
        floor.in_flight.ended(scope)
    assert (caller.requests, caller.bytes) == (0, 0)


def test_cancel_confirmation_requests_have_a_limit_separate_from_the_request_limit() -> None:
    cancel: Any = FakeRequest(method=Method("trio-mcp/cancel", "client", dict[str, Any], dict[str, Any], ahead=True))
    floor = Floor(max_in_flight=1, max_server_requests=6)
    floor.admit(3)
    other = Caller()
    taken = [floor.in_flight.admission.admit(cancel, other) for _ in range(3)]
    assert [ticket is not None for ticket in taken] == [True, True, False]


STEPS = st.tuples(
    st.sampled_from(["admit", "admit", "admit", "stream", "end", "park", "resume", "cancel parked", "overrun"]),
    st.integers(0, 5),
    st.integers(0, 40),
)


@given(st.lists(STEPS, max_size=60))
def test_request_counts_of_all_callers_add_up_to_the_counts_of_the_server(
    steps: list[tuple[str, int, int]],
) -> None:
    limits = Limits(max_in_flight=3, max_queued=2, max_server_requests=9, max_server_streams=4, max_server_bytes=100)
    load, callers = Load(), [Caller(number) for number in range(3)]
    admissions = [Admission[Ticket](limits, load) for _ in range(2)]
    running: list[tuple[Admission[Ticket], Ticket]] = []
    waiting, parked = list(running), list(running)

    def taken(admission: Admission[Ticket], ticket: Ticket) -> None:
        if ticket.runs:
            running.append((admission, ticket))
        else:
            admission.wait(ticket, ticket)
            waiting.append((admission, ticket))

    def started(admission: Admission[Ticket], tickets: Any) -> None:
        for ticket in tickets:
            waiting.remove((admission, ticket))
            running.append((admission, ticket))

    for word, whose, size in steps:
        admission, caller = admissions[whose % 2], callers[whose % 3]
        held = caller.requests
        free = limits.max_server_requests - load.in_flight - load.queued - load.parked
        if word in ("admit", "stream"):
            request: Any = FakeRequest(size, METHODS["subscriptions/listen" if word == "stream" else "tools/call"])
            ticket = admission.admit(request, caller)
            if ticket is not None:
                taken(admission, ticket)
                assert word == "stream" or held < free
        elif word == "end" and running:
            admission, ticket = running.pop(whose % len(running))
            started(admission, admission.release(ticket))
        elif word == "park" and (stays := [each for each in running if not each[1].streams]):
            admission, ticket = stays[whose % len(stays)]
            running.remove((admission, ticket))
            parked.append((admission, ticket))
            started(admission, admission.park(ticket))
        elif word == "resume" and parked:
            home, ticket = parked[whose % len(parked)]
            if admission.has_room(size, caller, ticket if home is admission else None):
                parked.remove((home, ticket))
                home.unpark(ticket)
                home.release(ticket)
                again: Any = FakeRequest(size)
                taken(admission, admission.reserve(again, caller))
        elif word == "cancel parked" and parked:
            home, ticket = parked.pop(whose % len(parked))
            home.unpark(ticket)
            home.clean_up(ticket)
            running.append((home, ticket))
        elif word == "overrun" and running:
            admission, ticket = running[whose % len(running)]
            started(admission, admission.release_slot(ticket))
        assert sum(each.requests for each in callers) == load.in_flight + load.queued + load.parked
        assert sum(each.streams for each in callers) == load.listening
        assert sum(each.bytes for each in callers) == load.inbound_bytes
    while running or waiting:
        for admission, ticket in tuple(running):
            running.remove((admission, ticket))
            started(admission, admission.release(ticket))
    for home, ticket in parked:
        home.unpark(ticket)
        home.release(ticket)
    assert [(each.requests, each.streams, each.bytes) for each in callers] == [(0, 0, 0)] * 3
