"""Integral floats are converted to int in one pass, up to a size limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from trio_mcp.protocol import user_types
from trio_mcp.protocol.converters import structure
from trio_mcp.protocol.types.notifications import ProgressParams
from trio_mcp.protocol.user_types import convert, with_whole_numbers

FLOAT = ValueError("Expected `int`, got `float`")


@dataclass
class Tree:
    size: int
    children: list[Tree] = field(default_factory=list)
    by_name: dict[str, Tree] = field(default_factory=dict)


class Add(msgspec.Struct, tag=4):
    size: int = 0
    parts: list[Add | Times] = []


class Times(msgspec.Struct, tag=5):
    size: int = 0
    parts: list[Add | Times] = []


class Point(msgspec.Struct, tag=5, array_like=True):
    x: int


class Line(msgspec.Struct, tag=6, array_like=True):
    share: float
    x: int


def test_integral_float_conversion_returns_data_without_integral_floats_unchanged() -> None:
    data = {"size": 3, "children": [{"size": 4}], "by_name": {"a": {"size": 5}}, "anything": 1.0}
    assert with_whole_numbers(data, Tree, FLOAT) is data
    assert with_whole_numbers([], dict[str, int], FLOAT) == []


def test_integral_float_conversion_copies_only_the_containers_of_changed_numbers() -> None:
    data = {"size": 1, "children": [{"size": 2}, {"size": 3.0}], "by_name": {"a": {"size": 4}}}
    whole = with_whole_numbers(data, Tree, FLOAT)
    assert whole["children"][1] == {"size": 3}
    assert whole["children"][0] is data["children"][0]
    assert whole["by_name"] is data["by_name"]


@pytest.mark.parametrize("members", [("children",), ("by_name",), ("children", "by_name")])
def test_integral_floats_in_deep_data_are_converted_in_linear_time(members: tuple[str, ...]) -> None:
    tree: Any = {"size": 3.0}
    for level in range(60):  # 2 to the power of 60 ways, where twice
        member = members[level % len(members)]
        tree = {"size": 1, member: [tree] if member == "children" else {"a": tree}}
    found = convert(tree, Tree)
    while found.children or found.by_name:
        (found,) = found.children or found.by_name.values()
    assert repr(found.size) == "3"


def test_integral_floats_in_a_tagged_union_are_converted_by_the_class_that_the_tag_names() -> None:
    whole, wrong = {"type": 4, "size": 3.0}, {"type": 4, "size": 0.5}
    for level in range(60):
        tag = 4 if level % 2 else 5.0
        whole, wrong = ({"type": tag, "parts": [inner]} for inner in (whole, wrong))
    found = convert(whole, Add | Times)  # type: ignore[arg-type] a union is no class
    while found.parts:
        (found,) = found.parts
    assert repr(found.size) == "3"
    with pytest.raises(ValueError, match="got `float`"):
        convert(wrong, Add | Times)  # type: ignore[arg-type]


def test_integral_floats_in_structs_written_as_arrays_are_converted_to_int() -> None:
    data = [[5, 1.0], [6.0, 2.0, 3.0]]
    assert convert(data, list[Point | Line]) == [Point(1), Line(2.0, 3)]
    for none in ([], [[]], [{"x": 1.0}], [1.0], [["5", 1.0]]):
        assert with_whole_numbers(none, list[Point | Line], FLOAT) is none


def test_integral_floats_are_converted_to_int_only_if_validation_failed_because_of_a_float() -> None:
    data = ["x", 1.0]
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(data, list[int])
    assert with_whole_numbers(data, list[int], caught.value) is data
    assert with_whole_numbers(data, list[int], FLOAT) == ["x", 1]


def test_integral_float_conversion_returns_too_large_data_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = [1.0] * user_types._MOST_PARTS  # pyright: ignore[reportPrivateUsage] the bound itself
    assert convert(most, list[int])[-1] == 1
    monkeypatch.setattr(user_types, "_schema_of", None)  # so that it would not go unseen
    with pytest.raises(ValueError, match=r"Expected `int`, got `float` - at `\$\[0\]`"):
        convert([*most, 1.0], list[int])


def test_integral_float_conversion_returns_too_deeply_nested_data_unchanged() -> None:
    data: dict[str, Any] = {"size": 3.0}
    for _ in range(100_000):
        data = {"size": 1, "children": [data]}
    assert with_whole_numbers(data, Tree, FLOAT) is data
    while data.get("children"):  # else freeing it would go as deep
        data = data["children"].pop()


@pytest.mark.parametrize("member", ["progress", "total"])
@pytest.mark.parametrize("number", [10**309, -(10**400)], ids=["309 digits", "below zero"])
def test_integer_beyond_the_range_of_a_float_is_refused_in_a_progress_notification(member: str, number: int) -> None:
    """A division by it would raise an error in the program of who reads."""
    params = {"progressToken": 1, "progress": 1, "total": 2}
    assert structure(params, ProgressParams).total == 2
    with pytest.raises(ValueError, match="or a number"):
        structure(params | {member: number}, ProgressParams)
