"""`as_`: the data of a result as a class of the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import attrs
import pytest

from trio_mcp import Server, ToolError, open_memory
from trio_mcp.types import CallToolResult, TextContent


@dataclass
class Point:
    x: int
    y: int = 0


@attrs.frozen
class Named:
    result: str


def result(structured: Any = None, text: str = "", *, is_error: bool = False) -> CallToolResult:
    return CallToolResult([TextContent(text)], structured_content=structured, is_error=is_error)


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        (result({"x": 1}), Point, Point(1)),
        (result({"result": 3}), int, 3),
        (result({"result": [{"x": 1}]}), list[Point], [Point(1)]),
        (result({"result": "a"}), Named, Named("a")),
        (result({"result": "a"}), str, "a"),
        (result({"result": "a"}), dict[str, str], {"result": "a"}),
        (result(None, "plain"), str, "plain"),
        (result(None, '{"x": 1}'), Point, Point(1)),
        (result([1, 2], "[1, 2]"), list[int], [1, 2]),
    ],
)
def test_tool_result_can_be_converted_to_a_requested_class(given: CallToolResult, kind: Any, value: Any) -> None:
    assert given.as_(kind) == value


@pytest.mark.parametrize(
    ("given", "kind", "told"),
    [
        (result({"x": "one"}), Point, r"\$\.x"),
        (result({"result": "one"}), int, "Expected `int`"),
        (result(None, "plain"), Point, "malformed"),
        (result({"x": 1}), str, "Expected `str`"),
    ],
)
def test_conversion_of_a_tool_result_to_a_class_raises_with_the_path_of_a_mismatch(
    given: CallToolResult, kind: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        given.as_(kind)


def test_conversion_of_a_failed_tool_result_to_a_class_raises_tool_error() -> None:
    with pytest.raises(ToolError, match="no such file"):
        result(None, "no such file", is_error=True).as_(Point)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_client_can_read_a_value_returned_by_a_tool_as_the_same_class(era: Any) -> None:
    server = Server("s")

    @server.tool
    def move(point: Point) -> list[Point]:
        return [point, Point(2)]

    async with open_memory(server, era=era) as client:
        moved = await client.call_tool("move", {"point": {"x": 1}})
        assert moved.as_(list[Point]) == [Point(1), Point(2)]
