"""Models, fields and types of pydantic in the signatures of handlers, in what they return and in their questions."""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    UUID4,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    PositiveInt,
    RootModel,
    SecretStr,
    create_model,
    field_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from tests.examples import examples

from trio_mcp import PeerError, RequestContext, Server, open_memory
from trio_mcp.protocol import foreign_types
from trio_mcp.protocol.user_types import schema_of
from trio_mcp.server.calling.signature import BadArguments, UserFunction
from trio_mcp.types import ElicitFormParams, ElicitResult

pytest.importorskip("pydantic", reason="needs pydantic: pip install -e '.[test]'")


class Line(BaseModel):
    """One article."""

    sku: str = Field(min_length=2, alias="SKU", description="The article.")
    count: int = Field(default=1, ge=1)

    @field_validator("count")
    @classmethod
    def _count(cls, count: int) -> int:
        if count == 13:
            raise ValueError("13 brings bad luck")
        if count == 44:
            raise TypeError("internal")
        if count == 46:
            raise KeyError("internal")
        return count


class Order(BaseModel):
    lines: list[Line]
    day: datetime.date | None = None
    site: AnyUrl | None = None
    price: Decimal = Decimal(1)


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    bark: int = 1


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: datetime.date
    number: int


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


Hundred = create_model("Hundred", **{f"field{number}": (int, ...) for number in range(100)})  # type: ignore[call-overload]


class Tree(BaseModel):
    children: list[Tree] = []


@attrs.frozen
class Box:
    line: Line | None
    more: dict[str, Line] = attrs.field(factory=dict[str, Line])


@dataclasses.dataclass
class Crate:
    lines: list[Line]


@pydantic_dataclass
class Checked:
    number: int = Field(ge=1)


def taking(kind: Any, **default: Any) -> UserFunction:
    async def take(value: Any) -> None: ...

    take.__annotations__["value"] = kind
    if default:
        take.__defaults__ = (default["default"],)
    return UserFunction.of(take)


LINE, LINES = {"SKU": "ab"}, [{"SKU": "ab", "count": 2}]


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (Line, LINE, Line(SKU="ab")),
        (list[Line], LINES, [Line(SKU="ab", count=2)]),
        (Line | None, None, None),
        (dict[str, Line], {"a": LINE}, {"a": Line(SKU="ab")}),
        (Box, {"line": LINE, "more": {"a": LINE}}, Box(Line(SKU="ab"), {"a": Line(SKU="ab")})),
        (Crate, {"lines": LINES}, Crate([Line(SKU="ab", count=2)])),
        (Cat | Dog, {"kind": "dog"}, Dog(kind="dog")),
        (list[Cat | Dog] | None, [{"kind": "cat"}], [Cat(kind="cat")]),
        (Line | str, "text", "text"),
        (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "cat"}, Cat(kind="cat")),
        (Checked, {"number": 1}, Checked(1)),
        (RootModel[list[int]], [1], RootModel[list[int]]([1])),
        (Strict, {"day": "2026-07-28", "number": 1}, Strict(day=datetime.date(2026, 7, 28), number=1)),
        (AnyUrl, "http://a.example/", AnyUrl("http://a.example/")),
        (Tree, {"children": [{}]}, Tree(children=[Tree()])),
        (Json[list[int]] | None, "[1]", [1]),
        (Annotated[str, BeforeValidator(str.strip)], " a ", "a"),
        (Annotated[int, Field(strict=False)], "3", 3),
        (Annotated[int, Field(strict=True, ge=1)], 3.0, 3),
        (Annotated[list[Line], Field(min_length=1)], [LINE], [Line(SKU="ab")]),
        (tuple[Line, Box], [LINE, {"line": None}], (Line(SKU="ab"), Box(None))),
    ],
    ids=str,
)
def test_pydantic_model_nested_anywhere_in_a_parameter_type_is_validated(kind: Any, given: Any, value: Any) -> None:
    function = taking(kind)
    assert function.bind({"value": given}) == {"value": value}
    assert json.dumps(function.schema)


@pytest.mark.parametrize(
    ("kind", "given", "fault"),
    [
        (Line, {"SKU": "a"}, r"^SKU: String should have at least 2 characters - at `\$\.value`$"),
        (Line, {}, r"^SKU: Field required"),
        (Order, {"lines": [{"SKU": "ab", "count": 13}]}, r"^lines\.0\.count: 13 brings bad luck - at `\$\.value`$"),
        (Box, {"line": {"SKU": "a"}}, r"^SKU: .* - at `\$\.value\.line`$"),
        (Cat | Dog, {"kind": "cow"}, r"Input should be 'cat'"),
        (Checked, {"number": 0}, r"^number: Input should be greater than or equal to 1"),
        (Strict, {"day": "2026-07-28", "number": "1"}, r"^number: Input should be a valid integer"),
        (Line, 3, r"^Input should be an object"),
        (UUID4, "x", "valid UUID"),
        (Annotated[list[Line], Field(min_length=1)], [], "at least 1 item"),
        (Annotated[int, Field(strict=True, ge=1)], "3", "^Expected `int`"),
    ],
    ids=str,
)
def test_error_for_an_invalid_model_argument_names_the_field(kind: Any, given: Any, fault: str) -> None:
    with pytest.raises(BadArguments, match=fault) as raised:
        taking(kind).bind({"value": given})
    assert "pydantic" not in str(raised.value)
    assert "input_value" not in str(raised.value)


def test_error_for_a_hundred_validation_errors_of_a_model_is_one_short_line() -> None:
    with pytest.raises(BadArguments) as raised:
        taking(Hundred).bind({"value": dict.fromkeys(Hundred.model_fields, "x" * 1000)})
    assert str(raised.value).count(";") == 5
    assert "; and 95 more" in str(raised.value)
    assert len(str(raised.value)) < 2000


def test_error_text_counts_validation_errors_of_a_model_beyond_the_first_few() -> None:
    with pytest.raises(BadArguments, match=r"^2,000 faults - at"):
        taking(Closed).bind({"value": dict.fromkeys(map(str, range(2000)))})


@pytest.mark.parametrize(
    ("kind", "given", "fault"),
    [
        (list[Line], [{}] * 7500, r"^0\.SKU: Field required - at"),
        (Order, {"lines": [{}] * 7500}, r"^lines\.0\.SKU: Field required - at"),
        (RootModel[list[list[Line]]], [[{}]] * 7500, r"^0\.0\.SKU: Field required - at"),
        (dict[str, Line], {str(number): {} for number in range(7500)}, r"^0\.SKU: Field required - at"),
    ],
    ids=["list", "model", "root", "dict"],
)
def test_list_of_models_is_validated_only_up_to_the_first_invalid_item(kind: Any, given: Any, fault: str) -> None:
    with pytest.raises(BadArguments, match=fault):
        taking(kind).bind({"value": given})


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (list[Line] | str, [1] * 110_000),
        (RootModel[list[int]], [1] * 110_000),
        (Crate, {"lines": [LINE] * 20_000}),
        (list[Box], [{"line": LINE}] * 10_001),
        (list[Box], [{"line": None, "more": dict.fromkeys(map(str, range(20_001)), LINE)}]),
    ],
    ids=["union", "root", "dataclass", "attrs", "dict"],
)
def test_model_argument_with_too_many_items_is_rejected(kind: Any, given: Any) -> None:
    with pytest.raises(BadArguments, match=r"too large: .*(more than|at most) (20|100),000 (list )?items"):
        taking(kind).bind({"value": given})


@pytest.mark.parametrize("kind", [RootModel[set[int]], RootModel[dict[int, int]]])
def test_model_argument_with_items_in_sets_or_dicts_has_a_lower_item_limit(kind: Any) -> None:
    many = [2**61 * number for number in range(6000)]
    given: Any = many if kind is RootModel[set[int]] else {str(number): 1 for number in many}
    with pytest.raises(BadArguments, match=r"too large: it has more than 5,000 list items"):
        taking(kind).bind({"value": given})


def test_model_argument_with_a_long_string_is_accepted() -> None:
    assert taking(Line).bind({"value": {"SKU": "a" * 1_000_000}})["value"].count == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["SKU", "count", "lines", "line", "kind", "day", "x"]), inner)
    ),
)


class Plain(BaseModel):
    count: int = 1
    lines: list[Plain] = []
    day: datetime.date | None = None


PETS = Annotated[Cat | Dog, Field(discriminator="kind")]
FUNCTIONS = list(map(taking, (Plain, list[Plain] | str, dict[str, Plain], Strict, Tree, Checked, UUID4, PETS)))


@given(data=JSON, strict=st.booleans())
@settings(max_examples=examples(100))
def test_model_parameter_accepts_arbitrary_data_or_raises_an_error_with_one_short_line(data: Any, strict: bool) -> None:
    faults: list[str] = []
    for function in FUNCTIONS:
        try:
            function.bind({"value": data}, strict=strict)
        except BadArguments as error:
            faults.append(str(error))
    assert all(fault.isprintable() and len(fault) < 2000 for fault in faults)


# Schemas


def test_pydantic_model_schema_has_constraints_aliases_defaults_and_descriptions() -> None:
    assert taking(Line).schema["properties"]["value"] == {
        "title": "Line",
        "description": "One article.",
        "type": "object",
        "properties": {
            "SKU": {"type": "string", "minLength": 2, "description": "The article."},
            "count": {"type": "integer", "minimum": 1, "default": 1},
        },
        "required": ["SKU"],
    }


def test_recursive_pydantic_model_has_a_definition_at_the_schema_root() -> None:
    schema = schema_of(dict[str, list[Tree]])
    assert schema["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert "$defs" not in schema["additionalProperties"]["items"]


@pytest.mark.parametrize("read", [True, False])
def test_recursive_pydantic_model_can_be_the_schema_root(read: bool) -> None:
    schema = schema_of(Tree, read=read)
    assert schema["type"] == "object"
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"]["Tree"]["properties"] == schema["properties"]


def test_pydantic_model_and_class_with_the_same_name_have_separate_definitions() -> None:
    other = dataclasses.make_dataclass("Tree", [("leaves", int)])
    both = dataclasses.make_dataclass("Both", [("one", other), ("two", Tree)])
    schema = schema_of(list[both])  # type: ignore[valid-type]
    assert schema["items"]["properties"]["one"]["required"] == ["leaves"]
    assert schema["items"]["properties"]["two"] == {"$ref": "#/$defs/models.Tree"}
    assert set(schema["$defs"]) == {"models.Tree"}
    assert schema["$defs"]["models.Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/models.Tree"}


def test_nested_pydantic_models_with_the_same_name_have_separate_definitions() -> None:
    one, other = create_model("Part", one=(int, ...)), create_model("Part", other=(int, ...))
    first, second = create_model("First", parts=(list[one], ...)), create_model("Second", parts=(list[other], ...))  # type: ignore[valid-type]
    schema = schema_of(dataclasses.make_dataclass("Both", [("first", first), ("second", second), ("third", first)]))
    parts = [field["properties"]["parts"]["items"]["required"] for field in schema["properties"].values()]
    assert parts == [["one"], ["other"], ["one"]]


def test_model_default_that_looks_like_a_json_schema_is_kept_unchanged() -> None:
    looks = {"type": "list", "items": [{"type": "dict"}]}
    kind = create_model("Looks", default=(dict[str, Any], looks), type=(list[int], [1]))
    value = taking(kind).bind({"value": {}})["value"]
    assert (value.default, value.type) == (looks, [1])


@pytest.mark.parametrize(
    ("kind", "default", "schema"),
    [
        (
            Annotated[int, Field(ge=1, description="How many.")],
            3,
            {"type": "integer", "minimum": 1, "description": "How many.", "default": 3},
        ),
        (int, Field(3, ge=1, lt=9), {"type": "integer", "minimum": 1, "exclusiveMaximum": 9, "default": 3}),
        (Annotated[int, Field(title="N", examples=[1])], ..., {"type": "integer", "title": "N", "examples": [1]}),
        (PositiveInt, ..., {"type": "integer", "exclusiveMinimum": 0}),
        (
            Annotated[int | None, Field(ge=5)],
            None,
            {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "null"}], "default": None},
        ),
        (
            list[Annotated[str, Field(max_length=3)]],
            Field(default_factory=list),
            {"type": "array", "items": {"type": "string", "maxLength": 3}},
        ),
        (str, Field(pattern="^a"), {"type": "string", "pattern": "^a"}),
        (Annotated[str, Field(json_schema_extra={"x-a": 1})], ..., {"type": "string", "x-a": 1}),
        (Annotated[float, Field(gt=0, allow_inf_nan=False)], ..., {"type": "number", "exclusiveMinimum": 0}),
        (Annotated[Line, Field(description="The one.")], ..., {"description": "The one."}),
        (Annotated[Cat | Dog, "The pet."], ..., {"description": "The pet."}),
    ],
    ids=str,
)
def test_pydantic_field_of_a_parameter_is_in_the_input_schema(kind: Any, default: Any, schema: dict[str, Any]) -> None:
    function = taking(kind) if default is ... else taking(kind, default=default)
    said = function.schema["properties"]["value"]
    said = {name: value for name, value in said.items() if name in schema}
    said = {**said, **{name: value for name, value in said.items() if name != "default" or "default" in schema}}
    assert {name: said[name] for name in schema} == schema


def test_parameter_type_that_msgspec_supports_is_validated_strictly_by_msgspec() -> None:
    function = taking(Annotated[int, Field(ge=1)], default=3)
    assert function.bind({}) == {"value": 3}
    for wrong in (0, "3", True):
        with pytest.raises(BadArguments, match=r"^Expected `int`"):
            function.bind({"value": wrong})


def test_pydantic_field_default_and_factory_apply_to_the_parameter() -> None:
    assert taking(Annotated[int, Field(default=4)]).bind({}) == {"value": 4}
    function = taking(list[int], default=Field(default_factory=list))
    function.bind({})["value"].append(1)
    assert function.bind({}) == {"value": []}
    with pytest.raises(BadArguments, match="missing required field `value`"):
        taking(int, default=Field(ge=1)).bind({})


def test_default_pydantic_model_is_not_shared_between_calls() -> None:
    function = taking(Order, default=Order(lines=[]))
    function.bind({})["value"].lines.append(Line(SKU="ab"))
    assert function.bind({})["value"].lines == []


def test_pydantic_model_without_a_json_schema_raises_at_registration() -> None:
    calling = create_model("Calling", call=(Callable[[], int], ...))
    with pytest.raises(TypeError, match=r"take: parameter 'value': Calling has no JSON Schema: .*CallableSchema"):
        taking(calling)


def test_pydantic_alias_of_a_parameter_raises_at_registration() -> None:
    with pytest.raises(
        TypeError,
        match=r"take: parameter 'value': a parameter must not have an alias: .*, and rename the parameter to from",
    ):
        taking(int, default=Field(alias="from"))


def test_msgspec_constraint_on_a_pydantic_model_raises() -> None:
    with pytest.raises(
        TypeError, match=r"take: parameter 'value': pydantic parses this annotation: use pydantic's Field instead of"
    ):
        taking(Annotated[list[Line], msgspec.Meta(min_length=1)])
    described = taking(Annotated[list[Line], msgspec.Meta(description="All.")])
    assert described.schema["properties"]["value"]["description"] == "All."


def test_pydantic_dataclass_inside_a_msgspec_class_raises() -> None:
    around = attrs.make_class("Around", {"checked": attrs.field(type=Checked)})
    with pytest.raises(TypeError, match=r"'value': the validators of the pydantic dataclass Checked .*a BaseModel"):
        taking(around)


def test_parameter_class_that_pydantic_cannot_validate_raises_at_registration() -> None:
    class Open:
        pass

    with pytest.raises(TypeError, match=r"take: parameter 'value': Open has no JSON form"):
        taking(Line | Open)


def test_pydantic_version_1_is_treated_as_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_core", None)
    monkeypatch.delitem(sys.modules, "trio_mcp.protocol.pydantic_models")
    monkeypatch.delattr("trio_mcp.protocol.pydantic_models")
    assert foreign_types._models.__wrapped__() is None  # pyright: ignore[reportPrivateUsage]


# Handlers


def shop() -> Server:
    server = Server("shop")

    @server.tool
    async def order(order: Order) -> Order:
        return order

    @server.tool
    async def pets(count: int) -> list[Cat | Dog]:
        return [Cat(kind="cat"), Dog(kind="dog")][:count]

    @server.tool
    async def open_form(model: bool) -> Any:
        return {"secret": SecretStr("x"), "line": Line(SKU="ab")}

    @server.tool
    def boxed(box: Box) -> Box:
        return box

    @server.tool(check_output=True)
    async def tree(tree: Tree) -> Tree:
        return tree

    @server.prompt
    async def ask(line: Line) -> str:
        return line.sku

    @server.resource("line://{number}")
    async def line(number: PositiveInt) -> Line:
        return Line(SKU="ab", count=number)

    return server


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_tool_can_take_and_return_pydantic_models(era: Literal["legacy", "modern"]) -> None:
    async with open_memory(shop(), era=era) as client:
        given = {"lines": LINES, "day": "2026-07-28", "site": "http://a.example/", "price": "1.50"}
        answer = await client.call_tool("order", {"order": given})
        assert answer.structured_content == given
        assert json.loads(answer.text) == given
        assert (await client.call_tool("pets", {"count": 2})).structured_content == {
            "result": [{"kind": "cat"}, {"kind": "dog", "bark": 1}]
        }
        boxed = await client.call_tool("boxed", {"box": {"line": LINE}})
        assert boxed.structured_content == {"line": {"SKU": "ab", "count": 1}, "more": {}}
        assert json.loads((await client.call_tool("open_form", {"model": True})).text) == {
            "secret": "**********",
            "line": {"SKU": "ab", "count": 1},
        }
        grown = {"children": [{"children": []}]}
        assert (await client.call_tool("tree", {"tree": grown})).structured_content == grown
        tools = {tool.name: tool async for tool in client.list_tools()}
        assert tools["order"].output_schema is not None
        assert tools["order"].output_schema["properties"]["price"]["type"] == "string"
        (contents,) = (await client.read_resource("line://7")).contents
        assert json.loads(contents.text) == {"SKU": "ab", "count": 7}  # type: ignore[union-attr]
        with pytest.raises(PeerError, match=r"Invalid params: Expected `int` >= 1"):
            await client.read_resource("line://0")
        (message,) = (await client.get_prompt("ask", {"line": '{"SKU":"xy"}'})).messages
        assert message.content.text == "xy"  # type: ignore[union-attr]
        with pytest.raises(PeerError, match="SKU: String should have at least 2 characters"):
            await client.get_prompt("ask", {"line": '{"SKU":"x"}'})
        with pytest.raises(PeerError, match="too large: JSON inside of strings has more than 262,144 characters"):
            await client.get_prompt("ask", {"line": '{"SKU":"%s"}' % ("x" * 270_000)})


@pytest.mark.parametrize("count", [44, 46])
async def test_exception_in_a_pydantic_validator_is_hidden_from_the_client(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_memory(shop()) as client:
        answer = await client.call_tool("order", {"order": {"lines": [{"SKU": "ab", "count": count}]}})
    assert answer.is_error
    assert answer.text == "internal error in tool order"
    assert "internal" in caplog.text


class Booking(BaseModel):
    email: str = Field(description="Where to write.", alias="e-mail")
    nights: int = Field(2, ge=1, le=30)
    room: Literal["single", "double"] = "single"
    remark: str | None

    @field_validator("email")
    @classmethod
    def _email(cls, email: str) -> str:
        if "@" not in email:
            raise ValueError("no address")
        return email


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_pydantic_model_as_a_form_validates_the_elicitation_answer(era: Literal["legacy", "modern"]) -> None:
    server = Server("hotel")
    asked: list[ElicitFormParams] = []

    @server.tool
    async def book(ctx: RequestContext) -> str:
        answer = await ctx.elicit("Your booking?", Booking)
        try:
            return repr(answer.as_(Booking))
        except ValueError as error:
            return str(error)

    async def fill(params: Any) -> ElicitResult:
        asked.append(params)
        return ElicitResult("accept", {"e-mail": "a@b.example" if len(asked) == 1 else "nobody", "nights": 3})

    async with open_memory(server, era=era, elicitation=fill) as client:
        first = (await client.call_tool("book")).text
        assert first == "Booking(email='a@b.example', nights=3, room='single', remark=None)"
        assert (await client.call_tool("book")).text == "e-mail: no address"
    assert asked[0].requested_schema == {
        "type": "object",
        "properties": {
            "e-mail": {"type": "string", "description": "Where to write."},
            "nights": {"type": "integer", "minimum": 1, "maximum": 30, "default": 2},
            "room": {"type": "string", "enum": ["single", "double"], "default": "single"},
            "remark": {"type": "string"},
        },
        "required": ["e-mail"],
    }


async def test_pydantic_dataclass_can_be_a_form_and_a_tool_result() -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: RequestContext) -> Checked | None:
        return (await ctx.elicit("How many?", Checked)).as_(Checked)

    async def fill(params: Any) -> ElicitResult:
        assert params.requested_schema["properties"] == {"number": {"type": "integer", "minimum": 1}}
        return ElicitResult("accept", {"number": 3})

    async with open_memory(server, elicitation=fill) as client:
        assert (await client.call_tool("ask")).structured_content == {"result": {"number": 3}}


async def test_raw_elicitation_result_can_be_read_as_a_pydantic_model() -> None:
    class Named(BaseModel):
        action: str

    server = Server("s")

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        result = await ctx.send_request(
            "elicitation/create", {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}, Named
        )
        return result.action

    async with open_memory(server, era="legacy", elicitation=lambda _: ElicitResult("decline")) as client:  # type: ignore[arg-type,return-value]
        assert (await client.call_tool("ask")).text == "decline"
