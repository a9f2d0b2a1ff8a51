"""JSON data as user classes: strict, but 3.0 is an integer."""

from __future__ import annotations

import enum
from collections import UserList
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pytest

from trio_mcp.protocol.user_types import convert, is_plain_class, optional_fields


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Pair(NamedTuple):
    left: int
    right: float


class Counted(TypedDict):
    count: int


class Boxed(msgspec.Struct, rename="camel"):
    in_stock: int


@dataclass
class Tree:
    size: int
    share: float = 0.5
    either: int | float = 0
    anything: Any = None
    level: Level = Level.LOW
    mode: Literal[1, 2] = 1
    pair: Pair | None = None
    counted: Counted | None = None
    boxed: list[Boxed] = field(default_factory=list)
    by_name: dict[str, list[int]] = field(default_factory=dict)
    places: tuple[int, str] = (0, "")
    children: list[Tree] = field(default_factory=list)


def test_integral_float_is_converted_to_int_where_the_class_has_an_int_field() -> None:
    data = {
        "size": 3.0,
        "share": 1.0,
        "either": 2.0,
        "anything": [4.0],
        "level": 2.0,
        "mode": 2.0,
        "pair": [5.0, 6.0],
        "counted": {"count": 7.0},
        "boxed": [{"inStock": 8.0}],
        "by_name": {"a": [9, 10.0]},
        "places": [11.0, "x"],
        "children": [{"size": 12.0, "children": [{"size": 1e3}]}],
    }
    before = repr(data)
    tree = convert(data, Tree)
    assert tree.pair is not None
    whole = [
        tree.size,
        tree.pair.left,
        tree.boxed[0].in_stock,
        *tree.by_name["a"],
        tree.places[0],
        tree.children[0].size,
    ]
    assert whole == [3, 5, 8, 9, 10, 11, 12]
    assert {type(number) for number in whole} == {int}
    assert tree.counted == {"count": 7}
    assert (tree.level, tree.mode) == (Level.HIGH, 2)
    assert tree.children[0].children[0].size == 1000
    kept = [tree.share, tree.either, tree.anything[0], tree.pair.right]
    assert (kept, {type(number) for number in kept}) == ([1.0, 2.0, 4.0, 6.0], {float})
    assert repr(data) == before, "what came is left as it is"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (3.5, int),
        (True, int),
        ("3", int),
        ([3.0, 0.5], list[int]),
        (3.0, str),
        (3.0, bool),
        (0.0, Annotated[int, msgspec.Meta(ge=1)]),
    ],
)
def test_conversion_to_int_refuses_a_float_that_is_not_integral(data: Any, kind: Any) -> None:
    with pytest.raises(ValueError, match="Expected"):
        convert(data, kind)


def test_is_plain_class_returns_false_for_attrs_classes_and_collections() -> None:
    assert all(map(is_plain_class, (Tree, Pair, Counted, Boxed)))
    assert not any(map(is_plain_class, (attrs.make_class("C", []), tuple, int, UserList, list[int])))


def test_dataclass_field_that_may_be_none_but_has_no_default_is_treated_as_optional() -> None:
    @dataclass
    class Form:
        name: str
        age: int | None
        mode: Literal["a", None]
        size: Annotated[int | None, msgspec.Meta(title="Size")]
        note: str | None = "none"

    Form.__annotations__ |= {"name": str, "age": int | None, "mode": Literal["a", None]}
    Form.__annotations__ |= {"size": Annotated[int | None, msgspec.Meta(title="Size")], "note": str | None}
    assert list(optional_fields(Form)) == ["age", "mode", "size"]
    assert list(optional_fields(dict)) == []
