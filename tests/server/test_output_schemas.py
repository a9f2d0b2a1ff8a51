"""Results match the output schema that was made of the annotation, formats included."""

from __future__ import annotations

import itertools
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import Generator, ItemsView, Iterable, Iterator, KeysView, ValuesView
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from enum import Flag, IntFlag
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import jsonschema_rs
import msgspec
import pydantic
import pytest

from trio_mcp import Image, Server, open_memory
from trio_mcp.protocol.user_types import schema_of
from trio_mcp.server.calling.results import result_maker
from trio_mcp.types import ImageContent, TextContent

T = TypeVar("T")
NOON = datetime(2026, 11, 29, 12)


class Access(Flag):
    NONE = 0
    READ = 1
    WRITE = 2


class Mask(IntFlag):
    A = 1
    B = 2


@attrs.define
class Part:
    name: str
    _secret: str = attrs.field(alias="secret")
    size: int = attrs.field(init=False)
    _cache: dict[str, int] = attrs.field(factory=dict[str, int])
    access: Access = Access.READ

    def __attrs_post_init__(self) -> None:
        self.size = 4


@attrs.define
class Tree:
    _id: int
    below: list[Tree]
    part: Part | None = None


@attrs.define
class Box(Generic[T]):
    value: T
    _raw: T


@dataclass
class Job:
    parts: deque[Part]
    _id: int = 1
    total: int = field(init=False)
    options: MappingProxyType[str, int] = field(default_factory=lambda: MappingProxyType({"a": 1}))

    def __post_init__(self) -> None:
        self.total = len(self.parts)


class Memo(pydantic.BaseModel):
    created_at: datetime
    at: time = time(10, 30)
    took: timedelta = timedelta(seconds=-1.5)
    zoned: pydantic.AwareDatetime = NOON.replace(tzinfo=UTC)
    access: Access = Access.READ | Access.WRITE
    masks: dict[Mask, list[Mask]] = {Mask.A: [Mask.A | Mask.B]}
    hidden: int = pydantic.Field(default=3, exclude=True)
    _private: int = 3


class Cat(msgspec.Struct, tag="cat"):
    name: str


class Dog(msgspec.Struct, tag="dog", rename="camel"):
    first_part: Part
    _id: int = 3


class One(msgspec.Struct, tag=1):
    n: int = 1


class Two(msgspec.Struct, tag=2):
    n: int = 2


class Row(TypedDict):
    access: Access
    at: datetime


class Pair(NamedTuple):
    part: Part
    pet: Cat | Dog


PART = Part("a", "s3cret")
VIEWED = {"a": 1, "b": 2}


def parts() -> Generator[Part]:
    yield PART
    yield PART


@pytest.mark.parametrize(
    ("returns", "value"),
    [
        (Part, PART),
        (list[Part], [PART]),
        (dict[str, Part] | None, {"a": PART}),
        (Tree, Tree(1, [Tree(2, [], PART)])),
        (Box[Part], Box(PART, PART)),
        (list[Box[int]], [Box(1, 2)]),
        (Job, Job(deque([PART]))),
        (Memo, Memo(created_at=NOON)),
        (list[Memo], [Memo(created_at=NOON)]),
        (Memo | None, Memo(created_at=NOON)),
        (Access, Access.READ | Access.WRITE),
        (list[Access], [Access.NONE]),
        (frozenset[Mask], frozenset([Mask.A | Mask.B])),
        (dict[Mask, int], {Mask.A | Mask.B: 1}),
        (Cat | Dog, Dog(PART)),
        (list[Cat | Dog] | None, [Cat("a"), Dog(PART)]),
        (One | Two, Two()),
        (Row, Row(access=Access.READ | Access.WRITE, at=NOON)),
        (Pair, Pair(PART, Dog(PART))),
        (datetime, NOON),
        (dict[date, time], {NOON.date(): NOON.time()}),
        (timedelta, timedelta(milliseconds=500)),
        (list[int], deque([1])),
        (list[int], range(3)),
        (list[Part], parts()),
        (list[str], VIEWED.keys()),
        (dict[str, int], MappingProxyType(VIEWED)),
        (dict[str, int], ChainMap(VIEWED)),
        (deque[Part], deque([PART])),
        (range, range(3)),
        (Iterator[Part], parts()),
        (Iterable[Part], parts()),
        (Generator[Part, None, None], parts()),
        (Iterator[int] | None, map(int, "12")),
        (KeysView[str], VIEWED.keys()),
        (ValuesView[int], VIEWED.values()),
        (ItemsView[str, int], VIEWED.items()),
        (Counter[str], Counter("aab")),
        (OrderedDict[str, Part], OrderedDict(a=PART)),
        (defaultdict[str, list[int]], defaultdict(list, {"a": [1]})),
        (dict[str, deque[Part]], {"a": deque([PART])}),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_every_result_matches_the_output_schema_made_from_its_annotation(returns: Any, value: Any) -> None:
    schema, make = result_maker(returns, None)
    assert schema is not None
    jsonschema_rs.meta.validate(schema)
    result = make(value).structured_content
    jsonschema_rs.validator_for(schema, validate_formats=True).validate(result)
    assert "secret" not in f"{schema} {result}"
    assert "discriminator" not in str(schema)
    assert result not in ({}, {"result": []}, {"result": {}})


def test_output_schema_of_an_iterator_or_dict_view_contains_the_class_of_the_items() -> None:
    for returns in (Iterator[Part], deque[Part], Iterable[Part], KeysView[Part]):
        schema, _ = result_maker(returns, None)
        assert schema is not None
        assert schema["properties"]["result"] == {"type": "array", "items": schema_of(Part, read=False)}


def test_private_attrs_fields_are_in_the_input_schema_but_not_the_output_schema() -> None:
    assert "_secret" in schema_of(Part)["required"]
    assert schema_of(Part, read=False)["required"] == ["name", "size"]


@pytest.mark.parametrize("returns", [list, list[Any], list[Any] | None, tuple, Iterator[Any], deque, list[object]])
async def test_list_result_is_sent_as_content_if_it_has_an_image_and_otherwise_as_structured_content(
    returns: Any,
) -> None:
    server = Server("s")

    async def pictures(count: int) -> Any:
        return iter(["a", 1, *[Image(b"png", "image/png")] * count])

    pictures.__annotations__["return"] = returns
    server.tool(pictures)
    async with open_memory(server) as client:
        assert [tool.output_schema async for tool in client.list_tools()] == [None]
        with_image = await client.call_tool("pictures", {"count": 1})
        without = await client.call_tool("pictures", {"count": 0})
    assert with_image.content == [TextContent("a"), TextContent("1"), ImageContent("cG5n", "image/png")]
    assert with_image.structured_content is None
    assert without.structured_content == {"result": ["a", 1]}
    assert without.text == '["a",1]'


async def test_endless_iterator_result_causes_a_tool_error(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("s")

    @server.tool
    async def count() -> Iterator[int]:
        return itertools.count()

    async with open_memory(server) as client:
        assert (await client.call_tool("count")).is_error
    assert "count has more than 1,000,000 items" in caplog.text
