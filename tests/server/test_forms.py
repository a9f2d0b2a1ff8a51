"""Forms from classes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, cast

import attrs
import msgspec
import pytest

from trio_mcp import CodedError, RequestContext, Server, open_memory
from trio_mcp.protocol.schema_validator import SchemaValidator
from trio_mcp.protocol.types.elicitation import check_form_schema
from trio_mcp.server.context.client_data import Form, form_schema
from trio_mcp.types import ElicitAnswer, ElicitFormParams, ElicitResult


class Seat(enum.Enum):
    AISLE = "aisle"
    WINDOW = "window"


@attrs.frozen
class Booking:
    name: Annotated[str, msgspec.Meta(min_length=1, title="Your name")]
    seats: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    seat: Seat = Seat.WINDOW
    meal: Literal["fish", "none"] | None = None
    extras: list[Literal["bag", "pet"]] = attrs.field(factory=list)
    insured: bool = False


def test_form_schema_of_a_class_is_a_flat_elicitation_schema() -> None:
    schema = form_schema(Booking)
    assert schema["required"] == ["name"]
    properties = cast("Any", schema["properties"])
    assert properties["extras"].pop("default", []) == []  # msgspec names the empty list since 0.23
    assert properties == {
        "name": {"type": "string", "minLength": 1, "title": "Your name"},
        "seats": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1},
        "seat": {"type": "string", "enum": ["aisle", "window"], "title": "Seat", "default": "window"},
        "meal": {"type": "string", "enum": ["fish", "none"]},
        "extras": {"type": "array", "items": {"type": "string", "enum": ["bag", "pet"]}},
        "insured": {"type": "boolean", "default": False},
    }


@dataclass
class Visit:
    """Of the harbour, which no revision of the specification has a member for."""

    berth: Annotated[str, "Where to moor."]
    arrival: datetime
    leaving: Annotated[datetime | None, "If known."]
    day: date
    length: Annotated[float, msgspec.Meta(ge=0), "In metres."] | None
    crew: int | None
    meal: Literal["fish", None]
    seats: list[Seat]
    note: str | None = None
    flag: Annotated[str, "Not this.", msgspec.Meta(description="Two letters.")] = "XX"


class Ticket(TypedDict):
    name: Annotated[str, "Who travels."]
    age: NotRequired[Annotated[int, "In years."]]


def test_elicitation_form_field_whose_type_allows_none_is_not_required() -> None:
    assert form_schema(Visit)["required"] == ["berth", "arrival", "day", "seats"]
    assert form_schema(Ticket)["required"] == ["name"]


@pytest.mark.parametrize("form", [Booking, Visit, Ticket])
def test_elicitation_form_schema_has_only_top_level_keywords_of_the_specification(form: type) -> None:
    assert form_schema(form).keys() == {"type", "properties", "required"}


def test_string_in_annotated_describes_the_elicitation_form_field() -> None:
    fields = form_schema(Visit)["properties"]
    described = {name: field["description"] for name, field in fields.items() if "description" in field}
    assert described == {
        "berth": "Where to moor.",
        "leaving": "If known.",
        "length": "In metres.",
        "flag": "Two letters.",
    }
    assert form_schema(Ticket)["properties"]["age"] == {"type": "integer", "description": "In years."}


def test_datetime_field_of_an_elicitation_form_has_its_format() -> None:
    fields = form_schema(Visit)["properties"]
    assert fields["arrival"] == {"type": "string", "format": "date-time"}
    assert fields["leaving"]["format"] == "date-time"
    assert fields["day"] == {"type": "string", "format": "date"}


def test_field_that_is_a_list_of_an_enum_becomes_a_multi_select_in_an_elicitation_form() -> None:
    assert form_schema(Visit)["properties"]["seats"] == {
        "type": "array",
        "items": {"type": "string", "enum": ["aisle", "window"]},
    }


def test_valid_elicitation_form_answer_is_converted_to_its_class() -> None:
    content = {"berth": "C7", "arrival": "2026-07-28T10:00:00Z", "day": "2026-07-28", "seats": ["aisle"], "length": 9}
    assert SchemaValidator(form_schema(Visit)).faults(content) is None
    visit = ElicitAnswer("accept", content).as_(Visit)
    assert visit is not None
    assert (visit.arrival, visit.seats) == (datetime(2026, 7, 28, 10, tzinfo=UTC), [Seat.AISLE])
    assert (visit.leaving, visit.length, visit.crew, visit.meal) == (None, 9.0, None, None)


def test_elicitation_form_schema_given_as_a_dict_is_unchanged() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert form_schema(schema) is schema


@attrs.frozen
class Nested:
    inner: Booking


@pytest.mark.parametrize("form", [Nested, {"type": "string"}, {"type": "object", "properties": {"inner": {}}}])
def test_elicitation_form_class_with_a_nested_class_raises(form: object) -> None:
    with pytest.raises(CodedError) as caught:
        form_schema(form)  # type: ignore[arg-type]
    assert caught.value.code == -32602


def test_error_for_a_nested_class_in_an_elicitation_form_names_the_field() -> None:
    with pytest.raises(CodedError, match="inner"):
        form_schema(Nested)


def test_unresolvable_annotation_in_an_elicitation_form_raises_an_error_with_its_name() -> None:
    class Form:
        name: Nowhere  # noqa: F821 # pyright: ignore[reportUndefinedVariable]

    with pytest.raises(TypeError, match="Form: an annotation could not be resolved"):
        form_schema(attrs.frozen(Form))


def test_accepted_elicitation_is_converted_to_the_form_class() -> None:
    answer = ElicitAnswer("accept", {"name": "Ada", "seat": "aisle"})
    assert answer.as_(Booking) == Booking("Ada", seat=Seat.AISLE)


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_declined_elicitation_has_no_content(action: Literal["decline", "cancel"]) -> None:
    assert ElicitAnswer(action).as_(Booking) is None


class Pair(NamedTuple):
    name: str
    number: int = 3


@pytest.mark.parametrize("form", ["text", 5, None, ["name", 5], print, int | None, Pair], ids=repr)
def test_elicitation_form_class_without_fields_raises_an_error_with_instructions(form: Any) -> None:
    with pytest.raises(CodedError, match="a form must be a class with fields, such as a dataclass, or a") as raised:
        form_schema(form)
    assert raised.value.code == -32602


@pytest.mark.parametrize(
    ("form", "field"),
    [
        (["small", "large"], {"type": "string", "enum": ["small", "large"]}),
        (("b", "a", "b"), {"type": "string", "enum": ["b", "a"]}),
        (["only"], {"type": "string", "enum": ["only"]}),
        (list(Seat), {"type": "string", "enum": ["aisle", "window"]}),
        ([["b", "a"]], {"type": "array", "items": {"type": "string", "enum": ["b", "a"]}}),
    ],
)
def test_elicitation_form_given_as_a_list_of_strings_is_sent_as_a_single_select(
    form: Any, field: dict[str, Any]
) -> None:
    assert form_schema(form) == {"type": "object", "properties": {"value": field}, "required": ["value"]}
    check_form_schema(form_schema(form))


@pytest.mark.parametrize("form", [[], [1, 2], [None], [[]], [["a"], ["b"]], [{"a": {"title": "A"}}], [str]])
def test_elicitation_form_given_as_a_list_raises_if_an_item_is_not_a_string(form: Any) -> None:
    with pytest.raises(CodedError, match="list of texts"):
        form_schema(form)


async def test_handler_can_elicit_a_choice_and_a_confirmation() -> None:
    server = Server("asking")

    @server.tool
    async def order(ctx: RequestContext) -> str:
        size = await ctx.elicit("?", ["small", "large"])
        confirmed = await ctx.elicit("Sure?", {"type": "object", "properties": {}})
        return f"{size.value} {size.as_(str)} {confirmed.action}"

    async def user(question: Any) -> ElicitResult:
        return ElicitResult("accept", {"value": "large"} if question.requested_schema["properties"] else {})

    async with open_memory(server, elicitation=user) as client:
        assert (await client.call_tool("order")).text == "large large accept"


def test_elicitation_form_schema_of_a_class_is_cached() -> None:
    @dataclass
    class Once:
        name: str

    assert Form.of(Once) is Form.of(Once)
    assert Form.of(Once).schema == form_schema(Once)
    assert Form.of(Once).faults({"name": 1})
    with pytest.raises(TypeError):
        Form.of(type("Never", (), {"__annotations__": {"what": object}}))


@pytest.mark.parametrize(
    ("kind", "field", "given", "value"),
    [
        (int, {"type": "integer"}, 3, 3),
        (bool, {"type": "boolean"}, False, False),
        (float, {"type": "number"}, 3, 3.0),
        (str, {"type": "string"}, "Ada", "Ada"),
        (date, {"type": "string", "format": "date"}, "2026-11-24", date(2026, 11, 24)),
        (Literal["fish", "none"], {"type": "string", "enum": ["fish", "none"]}, "fish", "fish"),
        (Seat, {"type": "string", "enum": ["aisle", "window"], "title": "Seat"}, "aisle", Seat.AISLE),
        (
            list[Seat],
            {"type": "array", "items": {"type": "string", "enum": ["aisle", "window"]}},
            ["aisle"],
            [Seat.AISLE],
        ),
        (
            Annotated[int, msgspec.Meta(ge=1), "How many."],
            {"type": "integer", "minimum": 1, "description": "How many."},
            2,
            2,
        ),
    ],
)
def test_handler_that_elicits_a_single_value_sends_a_form_with_one_field(
    kind: Any, field: dict[str, Any], given: Any, value: Any
) -> None:
    form = Form.of(kind)
    assert form.schema == {"type": "object", "properties": {"value": field}, "required": ["value"]}
    assert form.faults({"value": given}) is None
    assert form.faults({}) is not None
    answer = ElicitAnswer("accept", {"value": given})
    assert answer.value == given
    assert answer.as_(kind) == value
    assert ElicitAnswer("decline").value is ElicitAnswer("decline").as_(kind) is None


@pytest.mark.parametrize("kind", [list[int], list[Booking], int | str, Literal[1, "a"]])
def test_handler_that_elicits_a_single_value_of_an_unsupported_type_raises(kind: Any) -> None:
    with pytest.raises(CodedError, match="Invalid params"):
        Form.of(kind)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_handler_can_elicit_a_single_value(era: Literal["legacy", "modern"]) -> None:
    server = Server("s")

    @server.tool
    async def order(ctx: RequestContext) -> list[Any]:
        count = (await ctx.elicit("How many?", int)).as_(int)
        return [count, (await ctx.elicit("Where?", Literal["aisle", "window"])).value]

    async def answer(question: ElicitFormParams) -> ElicitResult:
        kinds = question.requested_schema["properties"]["value"]
        return ElicitResult("accept", {"value": kinds["enum"][0] if "enum" in kinds else 3})

    async with open_memory(server, era=era, elicitation=answer) as client:
        assert (await client.call_tool("order")).as_(list[Any]) == [3, "aisle"]
