"""How much one connection gets of what is for all."""

from __future__ import annotations

import pytest

from trio_mcp.concurrency.fair_share import leaves_enough


@pytest.mark.parametrize(
    ("held", "free", "more", "enough"),
    [(0, 1, 1, True), (0, 0, 1, False), (3, 4, 1, True), (4, 4, 1, False), (2, 10, 8, True), (2, 10, 9, False)],
)
def test_a_connection_takes_no_more_than_it_leaves_for_others(held: int, free: int, more: int, enough: bool) -> None:
    assert leaves_enough(held, free, more) is enough


def test_one_more_is_asked_for_unless_told() -> None:
    assert leaves_enough(1, 2)
    assert not leaves_enough(2, 2)


@pytest.mark.parametrize(("connections", "each"), [(1, 60), (2, 40), (3, 30)])
def test_connections_that_want_all_they_can_get_leave_as_much_as_each_of_them_has(connections: int, each: int) -> None:
    held, free = [0] * connections, 120
    for _ in range(free):
        for number, mine in enumerate(held):
            if leaves_enough(mine, free):
                held[number], free = mine + 1, free - 1
    assert (held, free) == ([each] * connections, each)
