"""Lenient reading, by the schema: of tools with ``lenient=True``, and of prompts."""

from __future__ import annotations

import datetime
import enum
import json
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel

from trio_mcp import PeerError, Server, open_memory
from trio_mcp.protocol.schema_reading import read_leniently
from trio_mcp.server.calling.signature import BadArguments, UserFunction


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclass
class Node:
    name: str
    size: int = 1
    children: list[Node] = field(default_factory=list)


class Model(BaseModel):
    rows: list[int]
    after: str = ""


class Window(TypedDict, total=False):
    after: str
    size: int


NOT_GIVEN: Any = object()


@pytest.mark.parametrize(
    ("kind", "default", "given", "read"),
    [
        (list[str], ..., '["JAN", "FEB"]', ["JAN", "FEB"]),
        (list[str] | None, None, '["JAN"]', ["JAN"]),
        (list[int], ..., ' ["1", 2, 3.0] ', [1, 2, 3]),
        (dict[str, int], ..., '{"a": "1"}', {"a": 1}),
        (dict[int, int], ..., '{"1": "2"}', {1: 2}),
        (set[int], ..., "[1, 1]", {1}),
        (tuple[int, str], ..., '["1", "a"]', (1, "a")),
        (dict[str, Any], ..., '{"nodes": [], "n": "1"}', {"nodes": [], "n": "1"}),
        (Node, ..., '{"name": "a", "size": "2", "children": "[{\\"name\\": \\"b\\"}]"}', Node("a", 2, [Node("b")])),
        (Node, ..., {"name": "a", "size": None, "children": ""}, Node("a")),
        (list[Node], ..., ['{"name": "a"}', {"name": "b"}], [Node("a"), Node("b")]),
        (list[Node], ..., '["{\\"name\\": \\"a\\"}"]', [Node("a")]),
        (Window, ..., {"after": None, "size": None}, {}),
        (Model, ..., '{"rows": "[1, 2]", "after": null}', Model(rows=[1, 2])),
        (list[Model], ..., '[{"rows": ["1"]}]', [Model(rows=[1])]),
        (Model | None, None, "null", None),
        (Node | list[int], ..., '{"name": "a"}', Node("a")),
        (str | list[int], ..., "[1]", "[1]"),
        (int | str, ..., "3", "3"),
        (int, ..., "3.0", 3),
        (float, ..., "1e3", 1000.0),
        (bool, ..., "True", True),
        (bool | None, None, "none", None),
        (dict[str, int], ..., '"{\\"a\\": 1}"', {"a": 1}),
        (str, "x", None, "x"),
        (str, "x", "", ""),
        (int, 5, None, 5),
        (int, 5, "", 5),
        (int, 5, "null", 5),
        (int | None, 5, "", 5),
        (int | None, 5, None, None),
        (int | None, ..., "", None),
        (list[str], [], None, []),
        (Level, Level.LOW, "", Level.LOW),
        (Literal["a", "b"], "a", "", "a"),
        (datetime.date | None, None, " ", None),
        (Literal[1, 2, "all"], ..., "1", 1),
        (list[Literal[1, 2]], ..., '["1"]', [1]),
        (Literal["a", 1, None], ..., "1", 1),
        (list[Level | None], ..., '["low", "null"]', [Level.LOW, None]),
        (dict[str, Level | int], ..., {"a": "1", "b": "low"}, {"a": 1, "b": Level.LOW}),
        (Any, None, "[1]", "[1]"),
    ],
)
def test_lenient_tool_converts_string_and_null_arguments_by_the_schema(
    kind: Any, default: Any, given: Any, read: Any
) -> None:
    handler = UserFunction.of(_function(kind, default))
    before = json.dumps(given)
    bound = handler.bind({"v": given}, strict=False)["v"]
    assert (bound, type(bound)) == (read, type(read))
    assert json.dumps(given) == before, "nothing is changed in place"


@pytest.mark.parametrize(
    ("kind", "default", "given"),
    [
        (int, ..., None),
        (int, ..., ""),
        (int, ..., "3.5"),
        (int, ..., "three"),
        (int, ..., "9" * 5000),
        (list[int], ..., "[1"),
        (list[int], ..., '{"a": 1}'),
        (list[int], ..., "1,2"),
        (list[int], ..., "[" * 10_000 + "]" * 10_000),
        (Node, ..., '{"size": 1}'),
        (Node, ..., None),
        (list[str], ..., [None]),
    ],
)
def test_invalid_argument_of_a_lenient_tool_raises_an_error_with_the_path_of_the_value(
    kind: Any, default: Any, given: Any
) -> None:
    with pytest.raises(BadArguments, match=r"at `\$\.v"):
        UserFunction.of(_function(kind, default)).bind({"v": given}, strict=False)


def _function(kind: Any, default: Any) -> Any:
    async def function(v: Any) -> None: ...

    function.__annotations__["v"] = kind
    if default is not ...:
        function.__defaults__ = (default,)
    return function


def _nested(levels: int) -> Any:
    value: Any = {"name": "leaf", "size": "1"}
    for _ in range(levels):
        value = {"name": "n", "children": [value]}
    return value


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (json.dumps([{"name": "x" * 300_000}]), "JSON inside of strings has more than 262,144 characters"),
        ([json.dumps({"name": "x" * 3000})] * 100, "JSON inside of strings has more than 262,144 characters"),
        ([{"name": "a", "size": "x"}] * 100_000, "were sent as strings: send them as JSON types"),
        ([_nested(200)], r"at `\$\.v"),
    ],
    ids=["one text", "many texts", "many steps", "many levels"],
)
def test_lenient_tool_rejects_string_arguments_that_exceed_the_limits(given: Any, fault: str) -> None:
    given = [*given, {"name": 1}] if isinstance(given, list) else given
    with pytest.raises(BadArguments, match=fault):
        UserFunction.of(_function(list[Node], ...)).bind({"v": given}, strict=False)


def test_lenient_tool_counts_items_in_json_strings_towards_the_size_limit_of_sets() -> None:
    handler = UserFunction.of(_function(set[datetime.timedelta], ...))
    with pytest.raises(BadArguments, match=r"the arguments are too large: .* because the parameters include a set"):
        handler.bind({"v": json.dumps([1] * 6000)}, strict=False)


TREE = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "rows": {"$ref": "#/$defs/rows"},
        "after": {"type": "string"},
        "either": {"oneOf": [{"$ref": "#/$defs/a~1b"}, {"type": "object", "properties": {"kind": {"const": "c"}}}]},
        "both": {"allOf": [{"type": "object"}, {"properties": {"n": {"type": ["number", "null"]}}}]},
        "loop": {"$ref": "#/properties/loop"},
        "any": {"anyOf": [True, {"type": "object"}], "type": ["object", "array"], "items": True},
        "nowhere": {"$ref": "#/$defs/none"},
        "elsewhere": {"$ref": "https://example.com/schema"},
    },
    "$defs": {
        "rows": {"type": "array", "items": {"type": "integer"}},
        "a/b": {"type": "object", "properties": {"kind": {"const": "d"}, "x": {"type": "boolean"}}},
    },
}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"n": "3", "rows": "[1]"}, {"n": 3, "rows": [1]}),
        ({"after": None, "n": None}, {}),
        ({"either": '{"kind": "d", "x": "true"}'}, {"either": {"kind": "d", "x": True}}),
        ({"either": '{"kind": "c", "x": "true"}'}, {"either": {"kind": "c", "x": "true"}}),
        ({"both": '{"n": "1.5"}'}, {"both": {"n": 1.5}}),
        ({"both": {"n": "null"}}, {"both": {"n": None}}),
        ({"loop": "[1]", "nowhere": "1", "elsewhere": None}, {"loop": "[1]", "nowhere": "1", "elsewhere": None}),
        ({"other": "1"}, {"other": "1"}),
        ({"any": '{"a": "1"}'}, {"any": {"a": "1"}}),
        ({"any": '["1"]'}, {"any": ["1"]}),
    ],
)
def test_lenient_tool_converts_arguments_according_to_an_explicit_input_schema(given: Any, read: Any) -> None:
    assert read_leniently(TREE, given) == read


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_lenient_tool_with_an_explicit_input_schema_receives_converted_arguments(era: Any) -> None:
    server = Server("s")
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "rows": {"type": "array", "items": {"type": "integer"}},
            "after": {"type": "string"},
        },
        "required": ["n"],
    }

    @server.tool(lenient=True, input_schema=schema)
    async def whole(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    @server.tool(lenient=True, input_schema=schema)
    async def named(n: int, rows: list[int], after: str = "start") -> list[Any]:
        return [n, rows, after]

    given = {"n": "3", "rows": "[1]", "after": None}
    async with open_memory(server, era=era) as client:
        assert (await client.call_tool("whole", given)).structured_content == {"n": 3, "rows": [1]}
        assert (await client.call_tool("named", given)).structured_content == {"result": [3, [1], "start"]}
        refused = await client.call_tool("whole", {"n": "three"})
        assert refused.is_error
        assert '"three" is not of type "integer" at n' in refused.text
        refused = await client.call_tool("whole", {"n": 1, "rows": f"[{'1,' * 200_000}1]"})
        assert "JSON inside of strings has more than 262,144 characters" in refused.text


async def test_prompt_arguments_are_parsed_from_strings() -> None:
    server = Server("s")

    @server.prompt
    async def wins(names: list[str], extra: dict[str, int], node: Node, least: int = 3, deep: bool = True) -> str:
        return f"{names} {extra} {node.name} {least} {deep}"

    given = {"names": '["a"]', "extra": '{"a": 3}', "node": '{"name": "b"}', "least": "", "deep": ""}
    async with open_memory(server) as client:
        (message,) = (await client.get_prompt("wins", given)).messages
        assert message.content.text == "['a'] {'a': 3} b 3 True"  # type: ignore[union-attr]
        with pytest.raises(PeerError, match=r"Expected `array`, got `str` - at `\$\.names`"):
            await client.get_prompt("wins", {**given, "names": "a"})
