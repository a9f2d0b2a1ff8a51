"""What is declared wrongly says so where it is declared, with what to write instead."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict, cast

import attrs
import msgspec
import pytest

from trio_mcp import Server, open_memory
from trio_mcp.testing import RecordingContext


class FieldInfo:
    """As that of several packages."""

    def __init__(self, default: Any = None) -> None:
        self.default = default


@dataclasses.dataclass(frozen=True)
class AtLeast:
    ge: int


class Unit:
    """A note for somebody else."""


def test_resource_without_a_uri_raises_at_registration() -> None:
    async def note() -> str:
        return "a"

    with pytest.raises(TypeError, match=r'right:  @server\.resource\("note://\{name\}"\)'):
        Server("s").resource(note)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["tool", "prompt"])
def test_unbound_method_as_a_tool_raises_at_registration(kind: str) -> None:
    server = Server("s")
    with pytest.raises(
        TypeError, match=r"Shop\.order is a method.*right:  server\.tool\(thing\.order\)".replace(".*", r"[\s\S]*")
    ):

        class Shop:
            @getattr(server, kind)
            async def order(self, item: str) -> None: ...


async def test_bound_method_can_be_a_tool() -> None:
    class Shop:
        async def order(self, item: str) -> str:
            return f"{item} ordered"

    server = Server("s")
    server.tool(Shop().order)
    async with open_memory(server) as client:
        assert (await client.call_tool("order", {"item": "tea"})).text == "tea ordered"


@pytest.mark.parametrize("register", [Server("s").tool, Server("s").prompt, Server("s").resource("x://y")])
def test_generator_function_as_a_handler_raises_at_registration(register: Callable[[Any], Any]) -> None:
    async def count() -> AsyncIterator[int]:
        yield 1

    def plain() -> Iterator[int]:
        yield 1

    for function in (count, plain):
        with pytest.raises(TypeError, match=rf"{function.__name__} is a generator.*return a list"):
            register(function)


@pytest.mark.parametrize(
    "kind",
    [Annotated[int, FieldInfo()], list[Annotated[int, FieldInfo()]] | None, Annotated[int, AtLeast(1)]],
    ids=["note", "inside", "bound"],
)
def test_parameter_constraint_that_the_server_cannot_validate_raises_at_registration(kind: Any) -> None:
    async def order(number: Any) -> None: ...

    order.__annotations__["number"] = kind
    with pytest.raises(TypeError, match=r"order: parameter 'number': (FieldInfo|AtLeast) of tests is not supported"):
        Server("s").tool(order)


@pytest.mark.parametrize("default", [FieldInfo(3), dataclasses.field(default=3)])
def test_pydantic_field_as_a_parameter_default_raises_at_registration(default: Any) -> None:
    async def order(number: int = default) -> None: ...

    with pytest.raises(TypeError, match=r"msgspec\.Meta\(ge=1, description='How many\.'\)\] = 3"):
        Server("s").tool(order)


@dataclasses.dataclass
class Ordered:
    number: Annotated[int, AtLeast(1)]


async def test_form_constraint_that_the_server_cannot_validate_raises() -> None:
    with pytest.raises(TypeError, match=r"form Ordered: field 'number' of Ordered: AtLeast of tests is not supported"):
        await RecordingContext(elicitation=lambda *_: None).elicit("how many?", Ordered)  # type: ignore[arg-type]


def test_pydantic_field_in_a_class_not_validated_by_pydantic_raises() -> None:
    pydantic = pytest.importorskip("pydantic")
    counted = dataclasses.make_dataclass("Counted", [("number", Annotated[int, pydantic.Field(ge=1)])])

    async def order(counted: Any) -> None: ...

    order.__annotations__["counted"] = counted
    with pytest.raises(TypeError, match=r"field 'number' of Counted: FieldInfo of pydantic is not supported"):
        Server("s").tool(order)


@dataclasses.dataclass
class Line:
    count: Annotated[int, AtLeast(1)]
    next: Line | None = None


@dataclasses.dataclass
class ByDefault:
    count: Any = FieldInfo(3)  # noqa: RUF009 - as people write it


@attrs.define
class InAttrs:
    lines: list[Line]


class InStruct(msgspec.Struct):
    count: Annotated[int, FieldInfo()]


class InTuple(NamedTuple):
    count: int = cast("Any", FieldInfo(3))


class InDict(TypedDict):
    count: NotRequired[Annotated[int, AtLeast(1)]]


@pytest.mark.parametrize("kind", [Line, ByDefault, InAttrs, InStruct, InTuple, InDict])
@pytest.mark.parametrize("inside", [False, True])
def test_class_field_constraint_that_the_server_cannot_validate_raises_at_registration(
    kind: type[Any], inside: bool
) -> None:
    async def order(thing: Any) -> None: ...

    order.__annotations__["thing"] = dict[str, kind | None] if inside else kind
    where = r"order: parameter 'thing': field 'count' of \w+: (FieldInfo|AtLeast) of tests is not supported"
    with pytest.raises(TypeError, match=where + r"[^:]*:\n.*\n    right:  count: Annotated\[int, msgspec"):
        Server("s").tool(order)


@dataclasses.dataclass
class Noted:
    count: Annotated[int, msgspec.Meta(ge=1), Unit(), "How many."] = dataclasses.field(default=1)
    units: list[Annotated[str, Unit]] = dataclasses.field(default_factory=list)
    whole: Noted | None = None


def test_class_fields_annotated_with_msgspec_metadata_and_unknown_objects_are_accepted() -> None:
    async def order(thing: Noted) -> None: ...

    Server("s").tool(order)


def test_parameters_annotated_with_msgspec_metadata_and_unknown_objects_are_accepted() -> None:
    async def order(
        number: Annotated[int, msgspec.Meta(ge=1), Unit(), "How many."] = 1, unit: Annotated[str, Unit] = "kg"
    ) -> None: ...

    Server("s").tool(order)


@pytest.mark.parametrize("name", ["two words", "a,b", "größe", "a/b", "x" * 129, "tab\t", "\u202eevil"])
def test_tool_name_invalid_by_the_specification_raises_at_registration(name: str) -> None:
    async def order() -> None: ...

    with pytest.raises(ValueError, match=r"is not a valid tool name.*1 to 128 letters"):
        Server("s").tool(name=name)(order)


@pytest.mark.parametrize("name", ["getUser", "DATA_EXPORT_v2", "admin.tools.list", "a-b", "x" * 128])
def test_tool_name_valid_by_the_specification_is_accepted(name: str) -> None:
    async def order() -> None: ...

    Server("s").tool(name=name)(order)
