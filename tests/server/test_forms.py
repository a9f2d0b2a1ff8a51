"""Forms from classes."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import attrs
import msgspec
import pytest

from trio_mcp import CodedError, ElicitAnswer
from trio_mcp.server.forms import form_schema


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


def test_a_class_becomes_a_flat_form() -> None:
    schema = form_schema(Booking)
    assert schema["required"] == ["name"]
    assert schema["properties"] == {
        "name": {"type": "string", "minLength": 1, "title": "Your name"},
        "seats": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1},
        "seat": {"type": "string", "enum": ["aisle", "window"], "title": "Seat", "default": "window"},
        "meal": {"type": "string", "enum": ["fish", "none"]},
        "extras": {"type": "array", "items": {"type": "string", "enum": ["bag", "pet"]}},
        "insured": {"type": "boolean", "default": False},
    }


def test_a_dict_is_kept_as_it_is() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert form_schema(schema) is schema


@attrs.frozen
class Nested:
    inner: Booking


@pytest.mark.parametrize("form", [Nested, {"type": "string"}, {"type": "object", "properties": {"inner": {}}}])
def test_what_is_not_flat_is_refused(form: object) -> None:
    with pytest.raises(CodedError) as caught:
        form_schema(form)  # type: ignore[arg-type]
    assert caught.value.code == -32602


def test_a_nested_field_is_named() -> None:
    with pytest.raises(CodedError, match="inner"):
        form_schema(Nested)


def test_an_annotation_that_names_nothing_is_told() -> None:
    class Form:
        name: Nowhere  # noqa: F821 # pyright: ignore[reportUndefinedVariable]

    with pytest.raises(TypeError, match="Form: an annotation could not be resolved"):
        form_schema(attrs.frozen(Form))


def test_an_accepted_answer_becomes_the_class() -> None:
    answer = ElicitAnswer("accept", {"name": "Ada", "seat": "aisle"})
    assert answer.content_as(Booking) == Booking("Ada", seat=Seat.AISLE)


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_an_answer_that_was_not_accepted_is_nothing(action: Literal["decline", "cancel"]) -> None:
    assert ElicitAnswer(action).content_as(Booking) is None
