"""The allowed values in the error for a value outside an enum."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Literal

import msgspec
import pytest

from trio_mcp.protocol.schema_reading import with_choices
from trio_mcp.protocol.schema_validator import SchemaValidator
from trio_mcp.server.calling.signature import BadArguments, UserFunction


class Level(Enum):
    LOW = "low"
    HIGH = "high"
    EXTREME = "extreme"


class Size(IntEnum):
    TWO = 2
    ONE = 1


@dataclass
class Step:
    mode: Literal["w", "r"]
    levels: list[Level] | None = None
    next: Step | None = None


class Cat(msgspec.Struct, tag="cat"):
    lives: int = 9


class Dog(msgspec.Struct, tag="dog"):
    age: int = 1


async def run(
    level: Level | int = 1,
    size: Size = Size.ONE,
    mode: Literal["w", "r"] | None = None,
    levels: dict[str, list[Level]] | None = None,
    named: dict[Level, int] | None = None,
    pair: tuple[int, Literal["x"]] = (1, "x"),
    some: set[Level] = set(),  # noqa: B006
    step: Step | None = None,
    pet: Cat | Dog | None = None,
) -> None: ...


LEVELS = '"low", "high", "extreme"'


@pytest.mark.parametrize(
    ("arguments", "choices"),
    [
        ({"level": "x"}, f"{LEVELS}, or integer"),
        ({"size": 3}, "2, 1"),
        ({"size": "2"}, "2, 1"),
        ({"mode": "x"}, '"w", "r", or null'),
        ({"levels": {"a": ["low", "x"]}}, LEVELS),
        ({"named": {"x": 1}}, LEVELS if "propertyNames" in msgspec.json.schema(dict[Level, int]) else None),
        ({"pair": [1, "y"]}, '"x"'),
        ({"some": ["x"]}, LEVELS),
        ({"step": {"mode": "x"}}, '"w", "r"'),
        ({"step": {"mode": "w", "next": {"mode": "w", "next": {"mode": "x"}}}}, '"w", "r"'),
        ({"step": {"mode": "w", "levels": ["x"]}}, LEVELS),
        ({"pet": {"type": "cow"}}, '"cat", "dog"'),
        ({"step": 3}, None),
        ({"other": 3}, None),
        ({"pair": []}, None),
    ],
    ids=str,
)
def test_argument_error_lists_the_allowed_values_for_a_value_outside_an_enum(
    arguments: dict[str, Any], choices: str | None
) -> None:
    with pytest.raises(BadArguments) as caught:
        UserFunction.of(run).bind(arguments)
    words = str(caught.value).partition(": must be one of ")
    assert words[2] == (choices or "")
    assert "`$" in words[0] or "unknown field" in words[0]


def test_argument_error_truncates_a_long_list_of_allowed_values() -> None:
    fault = "Invalid enum value 'x' - at `$`"
    assert len(with_choices(fault, {"enum": [f"{number:0500}" for number in range(1000)]})) < 1200
    assert with_choices(fault, {"enum": list(range(201))}).endswith(" 199, …")


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"enum": list("abcde")}, '"x": must be one of "a", "b", "c", "d", "e"'),
        (
            {"$ref": "#/$defs/Level", "$defs": {"Level": {"enum": list("abcd")}}},
            '"x": must be one of "a", "b", "c", "d"',
        ),
        ({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, 'must be one of "a", or null'),
        ({"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}, 'must be one of "a", "b"'),
        ({"enum": ["a", "b"]}, '"x" is not one of "a" or "b"'),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "$defs": [], "enum": list("abcd")},
            '"x": must be one of "a", "b", "c", "d"',
        ),
    ],
    ids=str,
)
def test_error_of_the_schema_validator_lists_the_allowed_values_for_a_value_outside_an_enum(
    schema: dict[str, Any], fault: str
) -> None:
    told = SchemaValidator(schema).faults("x")
    assert told is not None
    assert fault in told
    named = {key: value for key, value in schema.items() if key in ("$defs", "$schema")}
    assert SchemaValidator(named | {"items": schema}).faults(["x"]) == f"{told} at [0]"
