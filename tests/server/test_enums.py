"""Enums and literals in the schemas of tools: a type, the order of the author, and what providers of models accept."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import attrs
import jsonschema_rs
import msgspec
import pytest
from pydantic import BaseModel

from trio_mcp import Server, open_memory
from trio_mcp.protocol.inlining import schemas_in
from trio_mcp.protocol.user_types import schema_of


class Level(Enum):
    """How much."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    USUAL = "normal"  # noqa: PIE796 an alias


class Size(IntEnum):
    TWO = 2
    ONE = 1


class Color(StrEnum):
    red = "red"
    blue = "blue"


class Access(Flag):
    WRITE = 2
    READ = 1


KNOWS_ALL = "propertyNames" in msgspec.json.schema(dict[Literal["a"], int])
"""Whether msgspec is of a release that has schemas for such keys, and for literals with None."""
Mode = Literal["w", "r"]
NamedMode = NewType("NamedMode", Mode)  # type: ignore[valid-newtype]


@dataclass
class Plain:
    mode: Mode
    turned: Literal["r", "w"] = "r"


@attrs.frozen
class Made:
    mode: Mode


class Typed(TypedDict):
    mode: Mode


class Pair(NamedTuple):
    mode: Mode
    turned: Literal["r", "w"]


class Camel(msgspec.Struct, rename="camel"):
    file_mode: Mode


class Model(BaseModel):
    mode: Mode


class Cat(msgspec.Struct, tag="cat"):
    name: str


class Dog(msgspec.Struct, tag="dog"):
    name: str


TURNED = {"type": "string", "enum": ["r", "w"]}
MODE = {"type": "string", "enum": ["w", "r"]}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Literal["low", "normal", "high"], {"type": "string", "enum": ["low", "normal", "high"]}),
        (Literal[3, 1, 2], {"type": "integer", "enum": [3, 1, 2]}),
        *(
            [(Literal["w", None], {"anyOf": [{"type": "string", "enum": ["w"]}, {"type": "null"}]})]
            if KNOWS_ALL
            else []
        ),
        (Mode | None, {"anyOf": [MODE, {"type": "null"}]}),
        (Annotated[Mode, msgspec.Meta(description="How.")], MODE | {"description": "How."}),
        (Annotated[Mode, "How."], MODE),
        (NamedMode, MODE),
        (list[Mode], {"type": "array", "items": MODE}),
        (tuple[Mode, int], {"prefixItems": [MODE, {"type": "integer"}]}),
        (dict[Mode, int], {"propertyNames": MODE} if KNOWS_ALL else {}),
        (Level, {"type": "string", "enum": ["low", "normal", "high"], "title": "Level", "description": "How much."}),
        (Size, {"type": "integer", "enum": [2, 1], "title": "Size"}),
        (Color, {"type": "string", "enum": ["red", "blue"], "title": "Color"}),
        (Access, {"type": "integer", "enum": [2, 1], "title": "Access"}),
        (dict[Size, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Plain, {"properties": {"mode": MODE, "turned": TURNED | {"default": "r"}}}),
        (Made, {"properties": {"mode": MODE}}),
        (Typed, {"properties": {"mode": MODE}}),
        (Camel, {"properties": {"fileMode": MODE}}),
        (Model, {"properties": {"mode": MODE}}),
        (
            list[Model],
            {"items": {"type": "object", "title": "Model", "properties": {"mode": MODE}, "required": ["mode"]}},
        ),
        (Decimal, {"type": "string"}),
        (Path, {"type": "string"}),
        (datetime.date, {"type": "string", "format": "date"}),
    ],
    ids=str,
)
def test_schema_of_an_enum_has_a_type_and_the_declared_order(kind: Any, expected: dict[str, Any]) -> None:
    made = schema_of(kind)
    assert {key: value for key, value in made.items() if key in expected} == expected


def test_tool_schemas_have_no_keywords_that_mcp_hosts_reject() -> None:
    def nodes(schema: Any) -> Iterator[dict[str, Any]]:
        jsonschema_rs.meta.validate(schema)
        yield from schemas_in(schema)

    for kind in (Level, Cat | Dog, list[Cat | Dog] | None, Plain, Pair, Camel, Model, dict[Level, Mode], Decimal, Path):
        for read in (True, False):
            for node in nodes(schema_of(kind, read=read)):
                assert "discriminator" not in node
                assert node.get("format") in (None, "date-time")
                if "enum" in node:
                    assert node["type"] == "string"
                    assert all(isinstance(value, str) for value in node["enum"])


async def test_tools_list_sends_enum_values_in_the_declared_order() -> None:
    server = Server("s")

    @server.tool
    async def render(level: Level, mode: Mode = "r", turned: Literal["r", "w"] = "r", sizes: list[Size] = []) -> Level:  # noqa: B006
        return level

    async with open_memory(server) as client:
        (tool,) = [tool async for tool in client.list_tools()]
        refused = await client.call_tool("render", {"level": "loud"})
        assert (await client.call_tool("render", {"level": "low"})).structured_content == {"result": "low"}
    fields = tool.input_schema["properties"]
    assert [fields[name]["enum"] for name in ("level", "mode", "turned")] == [
        ["low", "normal", "high"],
        ["w", "r"],
        ["r", "w"],
    ]
    assert fields["sizes"]["items"]["enum"] == [2, 1]
    assert refused.text.endswith('must be one of "low", "normal", "high"')
