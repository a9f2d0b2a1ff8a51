"""Arguments come from annotations."""

from __future__ import annotations

import datetime
import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import attrs
import msgspec
import pytest
import trio

from trio_mcp import RequestContext, WorkerContext
from trio_mcp.server.calling.signature import BadArguments, UserFunction


@attrs.frozen
class Point:
    x: int
    y: int = attrs.field(default=0, validator=attrs.validators.ge(0))


@dataclass
class Size:
    width: float


class Names(TypedDict):
    first: str


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def properties(function: Callable[..., Any]) -> dict[str, Any]:
    return UserFunction.of(function).schema["properties"]


async def nothing(ctx: RequestContext) -> None: ...


async def everything(
    point: Point,
    size: Size,
    names: Names,
    colour: Colour,
    mode: Literal["a", "b"],
    limit: Annotated[int, msgspec.Meta(ge=1, le=9)],
    note: str | None,
    either: int | str,
    where: Path,
    tags: list[str] = [],  # noqa: B006 - the default is copied for each call, and that is the claim
) -> None: ...


GOOD = {
    "point": {"x": 1},
    "size": {"width": 2.5},
    "names": {"first": "Ada"},
    "colour": "blue",
    "mode": "a",
    "limit": 9,
    "note": None,
    "either": "x",
    "where": "/etc",
}


def test_arguments_of_every_kind_of_annotation_are_converted() -> None:
    bound = UserFunction.of(everything).bind(GOOD)
    assert bound["point"] == Point(1)
    assert bound["size"] == Size(2.5)
    assert bound["colour"] is Colour.BLUE
    assert bound["where"] == Path("/etc")
    assert bound["tags"] == []


def test_mutable_parameter_default_is_copied_for_each_call() -> None:
    signature = UserFunction.of(everything)
    signature.bind(GOOD)["tags"].append("changed")
    assert signature.bind(GOOD)["tags"] == []


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"point": {"x": "1"}}, "$.point.x"),
        ({"point": {"x": 1, "y": -1}}, "y"),
        ({"colour": "green"}, "$.colour"),
        ({"mode": "c"}, "$.mode"),
        ({"limit": 0}, "$.limit"),
        ({"either": 1.5}, "$.either"),
        ({"names": {}}, "$.names"),
        ({"mod": "a"}, "mod"),
    ],
)
def test_error_for_an_invalid_argument_contains_the_argument_name(change: dict[str, Any], place: str) -> None:
    with pytest.raises(BadArguments, match=place.replace("$", r"\$")):
        UserFunction.of(everything).bind({**GOOD, **change})


def test_error_for_a_missing_argument_contains_the_argument_name() -> None:
    with pytest.raises(BadArguments, match="point"):
        UserFunction.of(everything).bind({name: value for name, value in GOOD.items() if name != "point"})


def test_input_schema_has_type_object_and_no_reference_at_its_root() -> None:
    schema = UserFunction.of(everything).schema
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert "tags" not in schema["required"]
    assert "$ref" not in str(schema)
    assert schema["properties"]["point"]["title"] == "Point"
    assert schema["properties"]["limit"] == {"type": "integer", "minimum": 1, "maximum": 9}


def test_plain_string_in_annotated_describes_the_parameter() -> None:
    async def search(text: Annotated[str, "What to look for."]) -> None: ...

    assert properties(search) == {"text": {"type": "string", "description": "What to look for."}}


@pytest.mark.parametrize(
    "kind",
    [RequestContext, WorkerContext, RequestContext | None, RequestContext[Size], WorkerContext[Size] | None],
    ids=str,
)
def test_context_parameter_is_not_in_the_input_schema(kind: Any) -> None:
    async def handler(text: str, request: kind) -> None: ...  # pyright: ignore[reportInvalidTypeForm]

    handler.__annotations__ = {"text": str, "request": kind}
    signature = UserFunction.of(handler)
    assert signature.context_name == "request"
    assert signature.names == ("text",)


def test_unannotated_parameter_named_ctx_is_the_context() -> None:
    def handler(ctx) -> None: ...  # type: ignore[no-untyped-def]

    assert UserFunction.of(handler).context_name == "ctx"


def test_handler_without_parameters_has_an_empty_object_schema() -> None:
    assert UserFunction.of(nothing).schema["properties"] == {}


def test_handler_with_star_parameters_raises_at_registration_with_instructions() -> None:
    async def handler(*values: int) -> None: ...

    with pytest.raises(TypeError, match=r"values: list\[int\]"):
        UserFunction.of(handler)


@pytest.mark.parametrize("kind", [threading.Thread, list[threading.Thread], threading.Thread | None], ids=str)
def test_parameter_that_cannot_be_read_from_json_raises_an_error_with_its_name_and_type(kind: Any) -> None:
    async def handler(count: int, worker: Any) -> None: ...

    handler.__annotations__["worker"] = kind
    with pytest.raises(TypeError, match=r"handler: parameter 'worker': Thread has no JSON form.*`RequestContext`"):
        UserFunction.of(handler)


def test_class_with_an_unresolvable_annotation_raises_an_error_with_the_parameter_name() -> None:
    async def handler(event: trio.Event) -> None: ...  # a class of attrs, as it happens

    with pytest.raises(TypeError, match="handler: parameter 'event': an annotation could not be resolved"):
        UserFunction.of(handler)


def test_string_passed_instead_of_a_function_raises_an_error_with_instructions() -> None:
    with pytest.raises(TypeError, match=r"'sum' is not a function\. .*@server\.tool\(name='add'\)"):
        UserFunction.of("sum")  # type: ignore[arg-type]


def test_unresolvable_annotation_raises_an_error_with_its_name() -> None:
    async def handler(thing: Nowhere) -> None: ...  # noqa: F821 # pyright: ignore[reportUndefinedVariable]

    with pytest.raises(TypeError, match="Nowhere"):
        UserFunction.of(handler)


def test_json_number_with_an_integral_value_is_read_as_int_in_any_notation() -> None:
    async def handler(
        count: int, sizes: list[int], point: Point, limit: int | None, share: float, where: Path, flag: bool = False
    ) -> None: ...

    arguments = {"count": 3.0, "sizes": [1.0, 2], "point": {"x": 4.0}, "limit": 5.0, "share": 6.0, "where": "/etc"}
    bound = UserFunction.of(handler).bind(arguments)
    assert (bound["count"], bound["sizes"], bound["point"], bound["limit"]) == (3, [1, 2], Point(4), 5)
    assert {type(bound["count"]), *map(type, bound["sizes"]), type(bound["limit"])} == {int}
    assert type(bound["share"]) is float
    assert arguments["count"] == 3.0
    assert type(arguments["count"]) is float, "what came is left as it is"
    for wrong in ({"count": 3.5}, {"count": True}, {"flag": 1.0}, {"count": "3"}):
        with pytest.raises(BadArguments, match=next(iter(wrong))):
            UserFunction.of(handler).bind({**arguments, **wrong})


def test_string_argument_is_converted_to_a_number_only_in_a_lenient_tool() -> None:
    async def prompt(count: int, exact: bool = False) -> None: ...

    assert UserFunction.of(prompt).bind({"count": "3", "exact": "true"}, strict=False) == {"count": 3, "exact": True}
    with pytest.raises(BadArguments):
        UserFunction.of(prompt).bind({"count": "3"})


class Number(enum.IntEnum):
    ONE = 1


@dataclass
class Table:
    rows: dict[int, dict[datetime.date, str]]


DAY = datetime.date(2026, 7, 28)


@pytest.mark.parametrize(
    ("kind", "given", "bound"),
    [
        (dict[int, str], {"1": "a", "-2": "b"}, {1: "a", -2: "b"}),
        (dict[float, int], {"1.5": 1}, {1.5: 1}),
        (dict[Literal[1, 2], int], {"2": 1}, {2: 1}),
        (dict[Number, int], {"1": 1}, {Number.ONE: 1}),
        (dict[Colour, int], {"red": 1}, {Colour.RED: 1}),
        (dict[datetime.date, int], {"2026-07-28": 1}, {DAY: 1}),
        (list[dict[int, int]], [{"1": 1}], [{1: 1}]),
        (Table, {"rows": {"7": {"2026-07-28": "a"}}}, Table({7: {DAY: "a"}})),
        (dict[str, int], {"1": 1}, {"1": 1}),
    ],
)
def test_dict_keys_are_converted_from_json_strings(kind: Any, given: Any, bound: Any) -> None:
    async def count(by: Any) -> None: ...

    count.__annotations__["by"] = kind
    signature = UserFunction.of(count)
    assert signature.schema["properties"]["by"]
    for strict in (True, False):
        assert signature.bind({"by": given}, strict=strict) == {"by": bound}


@pytest.mark.parametrize(("kind", "given"), [(dict[int, str], {"1.5": "a"}), (dict[int, int], {"1": "1"})])
def test_invalid_dict_key_causes_an_invalid_argument_error(kind: Any, given: Any) -> None:
    async def count(by: Any) -> None: ...

    count.__annotations__["by"] = kind
    with pytest.raises(BadArguments, match="by"):
        UserFunction.of(count).bind({"by": given})


@pytest.mark.parametrize("kind", [dict[bool, int], dict[None, int], dict[int | None, int], dict[tuple[int, int], int]])
def test_dict_with_an_unsupported_key_type_raises_at_registration(kind: Any) -> None:
    async def count(by: Any) -> None: ...

    count.__annotations__["by"] = list[kind]
    with pytest.raises(TypeError, match=r"count: parameter 'by': dict keys of type .* are not supported.*dict\[str"):
        UserFunction.of(count)
