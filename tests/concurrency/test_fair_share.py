"""How much of a shared limit one connection may take."""

from __future__ import annotations

import pytest

from trio_mcp.concurrency.fair_share import Caller, SharedBytes, leaves_enough


@pytest.mark.parametrize(
    ("held", "free", "more", "enough"),
    [(0, 1, 1, True), (0, 0, 1, False), (3, 4, 1, True), (4, 4, 1, False), (2, 10, 8, True), (2, 10, 9, False)],
)
def test_connection_gets_a_slot_only_if_as_many_slots_stay_free_as_the_connection_already_uses(
    held: int, free: int, more: int, enough: bool
) -> None:
    assert leaves_enough(held, free, more) is enough


def test_fair_share_check_assumes_by_default_that_one_more_slot_is_requested() -> None:
    assert leaves_enough(1, 2)
    assert not leaves_enough(2, 2)


@pytest.mark.parametrize(("connections", "each"), [(1, 60), (2, 40), (3, 30)])
def test_connections_that_take_slots_in_turn_leave_as_many_slots_free_as_each_connection_uses(
    connections: int, each: int
) -> None:
    held, free = [0] * connections, 120
    for _ in range(free):
        for number, mine in enumerate(held):
            if leaves_enough(mine, free):
                held[number], free = mine + 1, free - 1
    assert (held, free) == ([each] * connections, each)


def requests_of(caller: Caller) -> int:
    return caller.requests


def taken(callers: list[Caller], free: int) -> list[int]:
    """Let the callers take one after another until none may; return what each has."""
    took = True
    while took:
        took = False
        for caller in callers:
            if caller.may_take(requests_of, free):
                took, free = True, free - 1
                party: Caller | None = caller
                while party is not None:
                    party.requests += 1
                    party = party.within
    return [caller.requests for caller in callers]


@pytest.mark.parametrize(("parts", "each"), [(1, 70), (2, 42), (3, 30)])
def test_connections_of_one_caller_together_use_at_most_half_of_all_slots(parts: int, each: int) -> None:
    caller, other = Caller("one"), Caller("other")
    mine = [caller.connection() for _ in range(parts)]
    assert taken(mine, 210) == [each] * parts
    free = 210 - caller.requests
    assert caller.requests <= free
    assert mine[0].connection().may_take(requests_of, free - caller.requests) is False
    assert caller.connection().may_take(requests_of, free), "one part more is served"
    assert other.connection().may_take(requests_of, free), "and so is another caller"


def test_client_of_a_server_that_serves_no_other_clients_can_use_all_slots() -> None:
    only = Caller(alone=True)
    assert taken([only.part("one")], 60) == [30]
    assert taken([Caller(alone=True)], 60) == [60]


def test_every_connection_of_an_anonymous_caller_counts_as_a_separate_caller() -> None:
    caller = Caller()
    assert caller.connection() is caller
    assert taken([caller.connection()], 60) == [30]


def test_usage_count_of_a_connection_is_dropped_when_the_connection_is_no_longer_referenced() -> None:
    caller = Caller("one")
    part = caller.part("a")
    part.requests = 1
    assert caller.part("a") is part
    assert caller.part("b") is not part
    assert (part.whole, caller.whole) == (caller, caller)
    assert (part.tag, part.tag != caller.tag) == (part.tag, True)
    del part
    assert caller.part("a").requests == 0


def test_bytes_in_use_by_a_connection_count_towards_the_limit_of_its_caller() -> None:
    shared, caller = SharedBytes(300), Caller("one")
    first, second = shared.held_for(caller.connection()), shared.held_for(caller.connection())
    first.add(100)
    assert not first.is_too_much
    second.add(1)
    assert first.is_too_much
    assert not second.is_too_much
    other = shared.held_for(Caller("other"))
    other.add(99)
    assert not other.is_too_much
    second.move_to(Caller("third"))
    first.release()
    second.release()
    assert shared.size == 99
    assert not shared.is_too_much(caller)
