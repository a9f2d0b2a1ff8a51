"""MR-06, MR-07: typed accessors are as strict for every class, and raise `ValueError` only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pytest

from trio_mcp.testing import RecordingContext
from trio_mcp.types import ElicitAnswer, ElicitResult


@attrs.define
class OfAttrs:
    price: int
    note: str = "none"


@dataclass
class OfData:
    price: int
    note: str = "none"


class OfTyping(TypedDict):
    price: int


class Named(NamedTuple):
    price: int
    note: str = "none"


class OfMsgspec(msgspec.Struct):
    price: int
    note: str = "none"


@attrs.define
class Holding:
    bill: OfData


OBJECTS: list[Any] = [OfAttrs, OfData, OfTyping, OfMsgspec]
KINDS: list[Any] = [*OBJECTS, Named, Holding, list[OfData], OfData | None, dict[str, OfTyping]]


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("number", ["3", "3.0"])
def test_request_state_input_responses_and_form_answers_are_converted_to_the_requested_class(
    kind: Any, number: str
) -> None:
    text = f'{{"price": {number}, "more": null}}'
    for made in (
        RecordingContext(request_state=text).request_state_as(kind),
        RecordingContext(input_responses={"q": msgspec.json.decode(text)}).input_response_as(kind, "q"),
        ElicitAnswer("accept", {"price": msgspec.json.decode(number)}).as_(kind),
    ):
        price = made["price"] if isinstance(made, dict) else made.price
        assert (price, type(price)) == (3, int)


def test_named_tuple_is_read_from_a_json_array() -> None:
    assert RecordingContext(request_state='[3.0, "x"]').request_state_as(Named) == Named(3, "x")


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    "text",
    [
        '{"price": "3"}',
        '{"price": 3.5}',
        '{"price": true}',
        '{"price": null}',
        '{"note": "x"}',
        '["3"]',
        "[true]",
        "[[3]]",
        '{"bill": [3]}',
        '{"bill": {"price": "3"}}',
        '"text"',
        "7",
        "{",
        "\ud800",
        "[" * 100_000,
    ],
    ids=range(15),
)
def test_invalid_request_state_or_form_answer_for_a_class_raises_value_error(kind: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        RecordingContext(request_state=text).request_state_as(kind)


@pytest.mark.parametrize("kind", [*OBJECTS, Named])
def test_missing_request_data_for_a_class_with_required_fields_raises_value_error(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"price|missing|default|array"):
        RecordingContext().request_state_as(kind)
    with pytest.raises(ValueError, match=r"price|missing|default|array"):
        RecordingContext().input_response_as(kind, "q")
    with pytest.raises(ValueError, match=r"price|missing|default|array"):
        ElicitAnswer("accept", {}).as_(kind)


def test_missing_request_state_is_read_as_an_empty_list_or_dict() -> None:
    assert RecordingContext().request_state_as(list[int]) == []
    assert RecordingContext().request_state_as(dict) == {}


def test_input_response_is_converted_to_a_specification_class_by_json_field_names() -> None:
    answer = {"action": "accept", "content": {"n": 3.0}, "_meta": {"a": 1}}
    ctx = RecordingContext(input_responses={"q": answer})
    assert ctx.input_response_as(ElicitResult, "q") == ElicitResult("accept", {"n": 3.0}, {"a": 1})


KNOWN: list[tuple[Any, Any, Any]] = [
    (datetime, "2026-07-28T01:02:03Z", datetime(2026, 7, 28, 1, 2, 3, tzinfo=UTC)),
    (frozenset[str], ["a"], frozenset("a")),
    (tuple[int, str], [1, "a"], (1, "a")),
    (bytes, "aGk=", b"hi"),
    (Annotated[int, msgspec.Meta(ge=1)], 3.0, 3),
    (OfData | str, "a", "a"),
]


@pytest.mark.parametrize("make", [attrs.define, dataclass])
@pytest.mark.parametrize(("kind", "data", "value"), KNOWN, ids=str)
def test_nested_fields_are_converted_for_every_kind_of_class(make: Any, kind: Any, data: Any, value: Any) -> None:
    made = make(type("Made", (), {"__annotations__": {"of_it": kind}}))
    ctx = RecordingContext(input_responses={"q": {"of_it": data}})
    assert ctx.input_response_as(made, "q").of_it == value
    for wrong in (0, {"x": 1}, [0], None):
        ctx = RecordingContext(input_responses={"q": {"of_it": wrong}})
        with pytest.raises(ValueError, match="of_it"):
            ctx.input_response_as(made, "q")


def test_form_field_that_allows_none_is_none_if_the_elicitation_answer_omits_it() -> None:
    @dataclass
    class Form:
        name: str
        age: int | None
        mode: Literal["a", None]

    Form.__annotations__ = {"name": str, "age": int | None, "mode": Literal["a", None]}
    answer = ElicitAnswer("accept", {"name": "Ada"})
    assert answer.as_(Form) == Form("Ada", None, None)
