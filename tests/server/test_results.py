"""What tools return becomes content, and structured content where the annotation says so."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from inspect import Parameter
from numbers import Integral
from typing import Any

import attrs
import msgspec
import pytest

from trio_mcp import InputRequired, PeerError, Server, error_result, open_memory, text_result
from trio_mcp.protocol.user_types import schema_of
from trio_mcp.server.calling.results import result_maker
from trio_mcp.types import CallToolResult, ContentBlock, ImageContent, TextContent


@attrs.frozen
class Weather:
    degrees: float
    sunny: bool = True


@dataclass
class Chain:
    next: Chain | None = None


def made(returns: Any, value: Any) -> CallToolResult:
    return result_maker(returns, None)[1](value)


@pytest.mark.parametrize(
    "returns",
    [str, None, CallToolResult, TextContent, list[TextContent | ImageContent], TextContent | str, Any],
)
def test_text_results_and_content_results_have_no_structured_content(returns: Any) -> None:
    assert result_maker(returns, None)[0] is None


def test_text_result_is_sent_as_one_content_block() -> None:
    assert made(str, "hello") == CallToolResult([TextContent("hello")])


def test_none_result_has_no_content_blocks() -> None:
    assert made(None, None) == CallToolResult([])


def test_content_blocks_in_a_result_are_sent_unchanged() -> None:
    image = ImageContent("aGk=", "image/png")
    assert made(list[TextContent | ImageContent], [TextContent("a"), image]).content == [TextContent("a"), image]


def test_object_result_is_sent_as_structured_content_and_repeated_as_text() -> None:
    schema, make = result_maker(Weather, None)
    result = make(Weather(21.5))
    assert schema is not None
    assert schema["properties"]["degrees"] == {"type": "number"}
    assert result.structured_content == {"degrees": 21.5, "sunny": True}
    assert result.content == [TextContent('{"degrees":21.5,"sunny":true}')]


@pytest.mark.parametrize(("returns", "value"), [(int, 3), (list[str], ["a"]), (int | None, None), (bool, True)])
def test_result_that_is_not_an_object_is_wrapped_in_structured_content(returns: Any, value: Any) -> None:
    schema, make = result_maker(returns, None)
    assert schema is not None
    assert schema["required"] == ["result"]
    assert make(value).structured_content == {"result": value}


def test_output_schema_of_a_list_contains_its_item_class_without_a_reference() -> None:
    schema, _ = result_maker(list[Weather], None)
    assert schema is not None
    assert schema["properties"]["result"]["items"] == schema_of(Weather)
    assert "$defs" not in schema


def test_output_schema_of_a_list_of_a_recursive_class_keeps_the_definition() -> None:
    schema, _ = result_maker(list[Chain], None)
    assert schema is not None
    assert schema["properties"]["result"]["items"] == {"$ref": "#/$defs/Chain"}
    assert "Chain" in schema["$defs"]


def test_output_schema_of_a_recursive_class_keeps_its_definition() -> None:
    schema, _ = result_maker(Chain, None)
    assert schema is not None
    assert schema["properties"]["next"]["anyOf"][0] == {"$ref": "#/$defs/Chain"}
    assert schema["$defs"]["Chain"]["properties"] == schema["properties"]


def test_explicit_output_schema_is_listed_unchanged() -> None:
    explicit = {"type": "object", "x-note": 1}
    assert result_maker(str, explicit)[0] is explicit


def test_text_result_and_error_result_functions_create_call_tool_results() -> None:
    assert text_result("a").is_error is None
    assert error_result("a") == CallToolResult([TextContent("a")], is_error=True)


def test_call_tool_result_of_a_structured_tool_is_returned_unchanged() -> None:
    assert made(Weather, error_result("no data")) == error_result("no data")


# Content in lists, tuples and dicts

TEXT, IMAGE = TextContent("a"), ImageContent("aGk=", "image/png")
INTERNALS = ("annotations", "mime_type", "null")


@dataclass
class Report:
    title: str
    chart: ImageContent


class Page(msgspec.Struct, rename="camel", tag=True):
    first_chart: ImageContent
    others: tuple[ImageContent, ...] = ()


@pytest.mark.parametrize(
    "returns",
    [
        Parameter.empty,
        Any,
        list[str | ImageContent],
        list[ContentBlock | str],
        tuple[str, ImageContent],
        tuple[ContentBlock | str, ...],
        Sequence[str | ImageContent],
        list[ImageContent] | tuple[str, ImageContent] | None,
        list[str | ImageContent] | CallToolResult,
        list,
        list[Any] | None,
        Sequence[Any],
        tuple[Any, ...],
        Iterator[object],
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [list, tuple, deque, iter])
def test_list_or_tuple_of_text_and_content_blocks_is_sent_as_content(returns: Any, kind: type[Any]) -> None:
    schema, make = result_maker(returns, None)
    assert schema is None
    assert make(kind(["a", IMAGE])) == CallToolResult([TEXT, IMAGE])


def test_data_between_content_blocks_is_sent_as_json_text() -> None:
    assert made(Any, [IMAGE, {"n": 1}, None, 2.5]).content == [IMAGE, TextContent('{"n":1}'), TextContent("2.5")]


@pytest.mark.parametrize(
    "returns", [Parameter.empty, Any, list[TextContent], list[ContentBlock | str], tuple[str, TextContent]]
)
@pytest.mark.parametrize("empty", [[], ()])
def test_empty_list_result_has_no_content_blocks(returns: Any, empty: Any) -> None:
    assert made(returns, empty) == CallToolResult([])


def test_list_of_strings_is_sent_as_content_only_if_the_return_annotation_names_content_blocks() -> None:
    assert made(list[str | ImageContent], ["a", "b"]).content == [TEXT, TextContent("b")]
    assert made(Any, ["a", "b"]).content == [TextContent('["a","b"]')]
    assert made(list[str], ["a", "b"]).structured_content == {"result": ["a", "b"]}


@pytest.mark.parametrize(
    ("returns", "value"),
    [
        (Any, {"chart": IMAGE, "note": TEXT}),
        (dict[str, ImageContent], {"chart": IMAGE}),
        (dict[str, Any], {"chart": IMAGE}),
        (dict, {"charts": (IMAGE,)}),
        (list, [[IMAGE]]),
        (Any, [[IMAGE]]),
        (Report, Report("a", IMAGE)),
        (Any, Report("a", IMAGE)),
        (Page, Page(IMAGE)),
        (Any, [Page(IMAGE, (IMAGE,))]),
    ],
    ids=str,
)
def test_content_block_inside_structured_data_is_encoded_as_in_the_specification(returns: Any, value: Any) -> None:
    schema, make = result_maker(returns, None)
    result = make(value)
    told = f"{schema} {result.structured_content} {result.text}"
    assert '"mimeType":"image/png"' in result.text
    assert not [word for word in INTERNALS if word in told]


@pytest.mark.parametrize("whole", [text_result("a"), InputRequired({}, "what the client is not to read")])
def test_call_tool_result_inside_structured_data_causes_an_error(whole: Any) -> None:
    with pytest.raises(TypeError, match="as its whole result, not inside other data"):
        made(Any, [whole, TEXT])


def test_tool_annotated_with_a_class_or_call_tool_result_has_the_output_schema_of_the_class() -> None:
    schema, make = result_maker(Weather | CallToolResult, None)
    assert schema == result_maker(Weather, None)[0]
    assert make(error_result("no data")) == error_result("no data")


# Defaults


@dataclass
class Base:
    size: int
    kind: str = field(default="base", init=False)
    tags: list[str] = field(default_factory=list, init=False)
    _inner: int = 3


@pytest.mark.parametrize(
    ("returns", "value", "expected"),
    [
        (Base, Base(1), {"size": 1, "kind": "base", "tags": [], "_inner": 3}),
        (Any, {"all": [Base(1)]}, {"all": [{"size": 1, "kind": "base", "tags": [], "_inner": 3}]}),
        (list[Base], [Base(1)], [{"size": 1, "kind": "base", "tags": [], "_inner": 3}]),
        (Weather, Weather(1.5), {"degrees": 1.5, "sunny": True}),
    ],
)
def test_dataclass_result_includes_default_values(returns: Any, value: Any, expected: Any) -> None:
    result = made(returns, value)
    assert json.loads(result.text) == expected
    if returns is not Any:
        assert result.structured_content in (expected, {"result": expected})


class Boxed(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", tag="box", omit_defaults=True):
    base_value: Base
    others: list[Base] = []
    block: Any = None
    size_limit: int = 3
    unset: Base | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        assert isinstance(self.base_value, Base)


@attrs.frozen
class Held:
    size: int
    kind: str = attrs.field(default="held", init=False)


class Holding(msgspec.Struct, array_like=True):
    held: Held
    base: Base | None = None


def test_dataclass_inside_a_struct_result_includes_default_values() -> None:
    base = {"size": 1, "kind": "base", "tags": [], "_inner": 3}
    box = Boxed(Base(1))
    assert made(Boxed, box).structured_content == {"kind": "box", "baseValue": base}
    assert isinstance(box.base_value, Base)
    full = Boxed(Base(1), [Base(1)], [IMAGE], 4)
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    told = {"kind": "box", "baseValue": base, "others": [base], "block": [image], "sizeLimit": 4}
    assert json.loads(made(list[Boxed], [full]).text) == [told]
    assert json.loads(made(Any, {"a": Holding(Held(2), Base(1))}).text)["a"] == [{"size": 2, "kind": "held"}, base]


# Text and numbers of other classes


class Text(str):
    """As what parsers of HTML find, for example."""


class Ratio(float):
    """As numpy's numbers, for example."""


class Count(int):
    pass


@pytest.mark.parametrize(
    ("returns", "value", "text"),
    [
        (str, Text("a"), "a"),
        (Any, Text("a"), "a"),
        (list[str | ImageContent], [Text("a")], "a"),
        (float, Ratio(2.5), "2.5"),
        (Any, Ratio(2.5), "2.5"),
        (dict[str, float], {Text("a"): Ratio(2.5)}, '{"a":2.5}'),
        (list[int], [Count(3)], "[3]"),
        (Any, Fraction(1, 2), "0.5"),
    ],
)
async def test_subclasses_of_str_and_numbers_are_returned_as_text_and_numbers(
    returns: Any, value: Any, text: str
) -> None:
    async def give() -> Any:
        return value

    give.__annotations__["return"] = returns
    server = Server("s")
    server.tool(give)
    async with open_memory(server) as client:
        result = await client.call_tool("give")
    assert (result.is_error, result.text) == (None, text)


async def test_prompts_and_resources_can_return_subclasses_of_str() -> None:
    server = Server("s")

    @server.prompt
    async def hello() -> str:
        return Text("hi")

    @server.resource("mem:///here")
    async def here() -> str:
        return Text("hi")

    async with open_memory(server) as client:
        assert (await client.get_prompt("hello")).text == "hi"
        assert (await client.read_resource("mem:///here")).text == "hi"


class OwnFloat(float):
    """As ``numpy.float64``."""


@Integral.register
class Registered:
    """As ``numpy.int64``, which is no subclass of int."""

    def __int__(self) -> int:
        return 7


@pytest.mark.parametrize(("value", "plain"), [(OwnFloat(1.5), 1.5), (Registered(), 7)])
@pytest.mark.parametrize("returns", [float, Any, dict[str, float], Weather])
def test_subclasses_of_numbers_are_encoded_as_plain_numbers(returns: Any, value: Any, plain: float) -> None:
    if returns is Weather:
        assert made(returns, Weather(value)).structured_content == {"degrees": plain, "sunny": True}
    elif returns is Any:
        assert made(returns, {"all": [value]}).text == f'{{"all":[{plain}]}}'
    elif returns is float:
        assert made(returns, value).structured_content == {"result": plain}
    else:
        assert made(returns, {"a": value}).structured_content == {"a": plain}


# Prompts


@pytest.mark.parametrize("kind", [list, tuple])
async def test_prompt_can_return_a_list_or_tuple_of_text_and_blocks(kind: type[Any]) -> None:
    server = Server("s")

    @server.prompt
    async def draw() -> Any:
        return kind(["a", IMAGE])

    @server.prompt
    async def wrong() -> Any:
        return {"a": IMAGE}

    async with open_memory(server) as client:
        assert [message.content for message in (await client.get_prompt("draw")).messages] == [TEXT, IMAGE]
        with pytest.raises(PeerError, match="Internal error"):
            await client.get_prompt("wrong")
