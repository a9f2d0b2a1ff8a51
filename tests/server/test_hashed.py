"""Sets and the like in arguments: a peer that makes their members collide is refused before they are built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from trio_mcp.server.calling.signature import BadArguments, UserFunction

COLLIDING = 2**61 - 1
"""Integers that differ by a multiple of it have the same hash."""


class Point(msgspec.Struct, frozen=True):
    x: int
    y: int


def taking(kind: Any) -> Callable[[Any], dict[str, Any]]:
    async def take(values: Any) -> None: ...

    take.__annotations__["values"] = kind
    signature = UserFunction.of(take)
    return lambda values: signature.bind({"values": values})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (set[int], [number * COLLIDING for number in range(200)]),
        (frozenset[int] | None, [number * COLLIDING for number in range(200)]),
        (set[int | float], [number * COLLIDING for number in range(200)]),
        (set[Any], list(range(6_000))),
        (set[tuple[int, int]], [[number, 0] for number in range(6_000)]),
        (list[frozenset[Point]], [[{"x": number, "y": 0} for number in range(6_000)]]),
        (dict[int, str], {str(number * COLLIDING): "" for number in range(6_000)}),
    ],
    ids=["set of int", "optional", "set of numbers", "set of anything", "set of tuples", "sets of a class", "keys"],
)
def test_set_argument_has_a_lower_size_limit_if_hashes_of_its_items_could_collide(kind: Any, values: Any) -> None:
    with pytest.raises(BadArguments, match=r"^the arguments are too large: .* at most [0-9,]+ items and members"):
        taking(kind)(values)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (set[int], list(range(50_000))),
        (set[str], [str(number) for number in range(150_000)]),
        (dict[str, int], {str(number): number * COLLIDING for number in range(150_000)}),
        (set[Any], list(range(1_000))),
        (dict[int, str], {str(number): "" for number in range(1_000)}),
    ],
    ids=["small integers", "text", "keys that are text", "few of anything", "few keys"],
)
def test_set_argument_is_accepted_if_small_or_if_hashes_of_its_items_cannot_collide(kind: Any, values: Any) -> None:
    assert len(taking(kind)(values)["values"]) == len(values)


def test_size_limit_of_a_call_with_a_set_argument_includes_all_its_arguments() -> None:
    async def take(ids: set[tuple[int, int]], rows: list[int]) -> None: ...

    signature = UserFunction.of(take)
    assert signature.bind({"ids": [[1, 2]], "rows": [1, 2]})["ids"] == {(1, 2)}
    with pytest.raises(BadArguments, match="too large"):
        signature.bind({"ids": [[1, 2]], "rows": list(range(6_000))})
