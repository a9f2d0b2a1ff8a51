"""Types that authors use and msgspec refuses: unions that look alike in JSON, enums of any values, aliases."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

import attrs
import msgspec
import pytest
from pydantic import BaseModel, JsonValue
from typing_extensions import TypeAliasType

from trio_mcp import Server, open_memory
from trio_mcp.protocol.foreign_types import adapted
from trio_mcp.protocol.schema_validator import SchemaValidator
from trio_mcp.protocol.user_types import convert
from trio_mcp.server.calling.signature import BadArguments, UserFunction

T = TypeVar("T")
DAY = datetime.date(2026, 7, 28)
ID = uuid.UUID(int=7)


@dataclass
class User:
    name: str
    age: int = 0


@dataclass
class Failure:
    error: str
    age: int = 0


@attrs.frozen
class Part:
    size: int = 1
    _secret: str = ""


@dataclass
class Event:
    """Something that happened."""

    at: datetime.date | str
    who: list[User | Failure] = field(default_factory=list)
    next: Event | None = None
    made: str = field(default="", init=False)
    count: ClassVar[int] = 0


class Row(TypedDict):
    at: datetime.date | str
    n: NotRequired[int]


@attrs.define
class Sealed:
    where: Path = Path("a")
    _id: uuid.UUID | str = ""


class Pair(NamedTuple):
    a: int
    b: int


class Spot(NamedTuple):
    at: datetime.date | str
    size: int = 1
    next: Spot | None = None


class Entry(msgspec.Struct, rename="camel"):
    made_at: datetime.date | str
    more: list[User | Failure] = []


@dataclass
class Box(Generic[T]):
    it: T


class Model(BaseModel):
    n: int


class Weight(enum.Enum):
    LIGHT = 0.5
    HEAVY = 2.5


class Mixed(enum.Enum):
    ONE = 1
    WORD = "word"
    PAIR = (1, 2)
    NONE = None


class Unit(enum.Enum):
    C = "c"
    F = "f"


Names = TypeAliasType("Names", "list[User | Failure]")
Tree = TypeAliasType("Tree", "dict[str, Tree] | list[Tree] | str | None")
Many = TypeAliasType("Many", list[T], type_params=(T,))  # type: ignore[valid-type]
Text = TypeAliasType("Text", str)


def _function(kind: Any, default: Any = ...) -> Any:
    async def function(v: Any) -> None: ...

    function.__annotations__["v"] = kind
    if default is not ...:
        function.__defaults__ = (default,)
    return function


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        (User | Failure, {"name": "a"}, User("a")),
        (User | Failure, {"error": "e", "age": 1}, Failure("e", 1)),
        (Part | Box[int], {"it": 3}, Box(3)),
        (User | Part | None, {"size": 3}, Part(3)),
        (User | Part | None, None, None),
        (User | dict[str, str], {"name": "a", "x": "b"}, {"name": "a", "x": "b"}),
        (User | dict[str, str], {"name": "a"}, User("a")),
        (datetime.date | str, "2026-07-28", DAY),
        (datetime.date | str, "tomorrow", "tomorrow"),
        (str | datetime.date, "2026-07-28", "2026-07-28"),
        (uuid.UUID | str, str(ID), ID),
        (Path | None, "a", Path("a")),
        (str | Path | uuid.UUID, "a", "a"),
        (datetime.datetime | datetime.date, "2026-07-28", DAY),
        (decimal.Decimal | int, "1.5", decimal.Decimal("1.5")),
        (str | list[str] | list[int], [1, 2], [1, 2]),
        (str | list[str] | list[int], ["a"], ["a"]),
        (tuple[int, int] | list[str], ["a"], ["a"]),
        (dict[str, int] | dict[str, str], {"a": "b"}, {"a": "b"}),
        (Unit | str, "c", Unit.C),
        (Unit | str, "x", "x"),
        (list[User | Failure], [{"name": "a"}, {"error": "e"}], [User("a"), Failure("e")]),
        (dict[str, datetime.date | str], {"a": "2026-07-28"}, {"a": DAY}),
        (Sequence[User | Failure], [{"name": "a"}], [User("a")]),
        (Mapping[str, uuid.UUID | str], {"a": "b"}, {"a": "b"}),
        (tuple[User | Failure, ...], [{"name": "a"}], (User("a"),)),
        (Event, {"at": "2026-07-28", "next": {"at": "x"}}, Event(DAY, [], Event("x"))),
        (Event, {"at": "x", "who": [{"error": "e"}]}, Event("x", [Failure("e")])),
        (Event | User, {"name": "a"}, User("a")),
        (list[Event], [{"at": "x"}], [Event("x")]),
        (Row, {"at": "2026-07-28"}, {"at": DAY}),
        (Spot, ["2026-07-28", 3, ["x"]], Spot(DAY, 3, Spot("x"))),
        (Spot | Row, {"at": "x"}, {"at": "x"}),
        (list[Spot], [["x", 2]], [Spot("x", 2)]),
        (Sealed, {}, Sealed()),
        (Entry, {"madeAt": "2026-07-28", "more": [{"error": "e"}]}, Entry(DAY, [Failure("e")])),
        (Sealed, {"where": "b", "_id": str(ID)}, Sealed(Path("b"), ID)),
        (Box[User | Failure], {"it": {"error": "e"}}, Box(Failure("e"))),
        (Model | Part, {"size": 3}, Part(3)),
        (Weight, 0.5, Weight.LIGHT),
        (list[Weight], [2.5], [Weight.HEAVY]),
        (Weight | None, None, None),
        (Mixed, "word", Mixed.WORD),
        (Mixed, [1, 2], Mixed.PAIR),
        (Mixed, None, Mixed.NONE),
        (Mixed, 1, Mixed.ONE),
        (Literal[Unit.C], "c", Unit.C),
        (Literal[Unit.C, "x", 3, True, None], True, True),
        (Names, [{"error": "e"}], [Failure("e")]),
        (Tree, {"a": ["b", None]}, {"a": ["b", None]}),
        (Many[int], [1], [1]),
        (Many[Unit], ["c"], [Unit.C]),
        (Text | None, "a", "a"),
        (JsonValue, {"a": [1, None]}, {"a": [1, None]}),
        (dict[str, JsonValue], {"a": [1]}, {"a": [1]}),
        (list[JsonValue] | None, [{}], [{}]),
        (Annotated[datetime.date | str, msgspec.Meta(description="When.")], "x", "x"),
        (Annotated[datetime.date | str, {"a": "note"}], "x", "x"),
    ],
    ids=repr,
)
def test_union_parameter_is_converted_by_the_first_type_of_the_union_that_fits(
    kind: Any, given: Any, read: Any
) -> None:
    handler = UserFunction.of(_function(kind))
    assert SchemaValidator(handler.schema).faults({"v": given}) is None
    bound = handler.bind({"v": given})["v"]
    assert (bound, type(bound)) == (read, type(read))
    assert convert(given, kind) == read
    text = given if isinstance(given, str) else json.dumps(given)
    assert handler.bind({"v": text}, strict=False) in ({"v": read}, {"v": text})


@pytest.mark.parametrize(
    ("kind", "given", "fault"),
    [
        (User | Failure, {"age": 1}, r"required field `name`; or: .*required field `error` - at `\$\.v`"),
        (datetime.date | uuid.UUID, "x", r"Invalid RFC3339 encoded date; or: Invalid UUID - at `\$\.v`"),
        (list[Weight], [0.5, 1.0], r"expected one of 0.5, 2.5 - at `\$\.v\[1\]`"),
        (Mixed, True, r"expected one of"),
        (Event, {"at": 3}, r"Expected `str`"),
        (Literal[Unit.C], "f", "expected one of c"),
    ],
)
def test_argument_that_fits_no_type_of_a_union_parameter_is_rejected_with_the_reason(
    kind: Any, given: Any, fault: str
) -> None:
    with pytest.raises(BadArguments, match=fault):
        UserFunction.of(_function(kind)).bind({"v": given})


@dataclass
class Left:
    below: Left | Right | None = None
    x: int = 0


@dataclass
class Right:
    below: Left | Right | None = None
    y: int = 0


@pytest.mark.parametrize("levels", [20, 60, 250])
def test_nested_union_parameters_are_validated_within_a_limited_time(levels: int) -> None:
    value: Any = {"x": "wrong", "y": "wrong"}
    for _ in range(levels):
        value = {"below": value, "y": 1, "x": 1}
    handler = UserFunction.of(_function(Left | Right))
    with pytest.raises(BadArguments) as caught:
        handler.bind({"v": value})
    assert len(str(caught.value)) < 2000
    assert handler.bind({"v": {"below": {"below": {"y": 2}}, "y": 1}}) == {"v": Right(Left(Right(None, 2)), 1)}


def test_sets_inside_a_union_parameter_count_towards_the_size_limit() -> None:
    handler = UserFunction.of(_function(set[float] | list[str] | dict[str, User | Failure]))
    with pytest.raises(BadArguments, match=r"the arguments are too large: .* because the parameters include a set"):
        handler.bind({"v": [1.5] * 200_000})


@pytest.mark.parametrize(
    ("kind", "default", "plain"),
    [
        (Path, Path("a/b"), "a/b"),
        (PurePosixPath | None, PurePosixPath("a"), "a"),
        (Unit, Unit.C, "c"),
        (Weight, Weight.LIGHT, 0.5),
        (datetime.date, DAY, "2026-07-28"),
        (datetime.date | str, DAY, "2026-07-28"),
        (Any, Path("a"), "a"),
        (Part | User, Part(2), {"size": 2}),
        (Literal[Unit.C, "x"], Unit.C, "c"),
    ],
)
def test_parameter_default_is_encoded_as_json_in_the_schema_and_stays_an_object_in_the_handler(
    kind: Any, default: Any, plain: Any
) -> None:
    handler = UserFunction.of(_function(kind, default))
    assert handler.schema["properties"]["v"]["default"] == plain
    assert handler.bind({}) == {"v": default}


@pytest.mark.parametrize(
    ("kind", "value", "plain"),
    [
        (User | Failure, Failure("e"), {"error": "e", "age": 0}),
        (list[User | Failure], [User("a")], [{"name": "a", "age": 0}]),
        (datetime.datetime | str, "soon", "soon"),
        (User | dict[str, str], {"a": "b"}, {"a": "b"}),
        (Event, Event("x"), {"at": "x", "who": [], "next": None, "made": ""}),
        (Weight, Weight.LIGHT, 0.5),
        (dict[str, Weight | None], {"a": Weight.HEAVY}, {"a": 2.5}),
        (Names, [Failure("e")], [{"error": "e", "age": 0}]),
        (JsonValue, {"a": [1]}, {"a": [1]}),
        (Model | User, User("a"), {"name": "a", "age": 0}),
        (uuid.UUID | Path, Path("a"), "a"),
        (Box[User | Failure], Box(User("a")), {"it": {"name": "a", "age": 0}}),
        (Sealed, Sealed(Path("a"), "secret"), {"where": "a"}),
        (Spot, Spot(DAY, 2, Spot("x")), ["2026-07-28", 2, ["x", 1, None]]),
        (Entry | None, Entry("x"), {"madeAt": "x", "more": []}),
        (list[Sealed] | list[User], [Sealed(Path("a"))], [{"where": "a"}]),
    ],
    ids=repr,
)
async def test_result_annotated_with_a_union_is_encoded_by_the_type_of_the_value(
    kind: Any, value: Any, plain: Any
) -> None:
    server = Server("s")

    async def tool() -> Any:
        return value

    tool.__annotations__["return"] = kind
    server.tool(tool, check_output=True)
    async with open_memory(server) as client:
        result = await client.call_tool("tool")
    assert result.structured_content in (plain, {"result": plain})


async def test_result_annotated_with_an_alias_of_str_is_sent_as_plain_text() -> None:
    server = Server("s")

    @server.tool
    async def tool() -> Text:
        return "a"

    async with open_memory(server) as client:
        assert (await client.call_tool("tool")).structured_content is None


@pytest.mark.parametrize("is_async", [True, False])
async def test_parameter_name_can_begin_with_two_underscores(is_async: bool) -> None:
    server = Server("s")

    async def tool(__typename: str, plain: int = 1, __n: int = 2) -> str:
        return f"{__typename} {plain} {__n}"

    server.tool(name="tool")(tool if is_async else lambda __typename, plain=1, __n=2: f"{__typename} {plain} {__n}")
    server.prompt(name="prompt")(tool)
    async with open_memory(server) as client:
        (listed,) = [each async for each in client.list_tools()]
        assert list(listed.input_schema["properties"]) == ["__typename", "plain", "__n"]
        assert (await client.call_tool("tool", {"__typename": "User", "__n": 3})).text == "User 1 3"
        assert "__typename" in (await client.call_tool("tool", {"__n": 3})).text
        (message,) = (await client.get_prompt("prompt", {"__typename": "User", "__n": "3"})).messages
        assert message.content.text == "User 1 3"  # type: ignore[union-attr]


def test_adapted_function_returns_a_type_that_contains_no_pydantic_class_unchanged() -> None:
    for _ in range(2):
        hint = int | list[str]  # a new object each time
        assert adapted(hint) is hint
