"""Form fields: their prompts, and the values of typed answers."""

from typing import Any

import pytest

from trio_mcp import CodedError
from trio_mcp.cli.terminal import FormField, form_fields


def field(schema: dict[str, Any], *, required: bool = False) -> FormField:
    (only,) = form_fields({"properties": {"it": schema}, "required": ["it"] if required else []})
    return only


COLOURS = {"type": "string", "enum": ["r", "g"], "enumNames": ["red", "green"]}
SIZES = {"type": "string", "oneOf": [{"const": "s", "title": "small"}, {"const": "2", "title": "large"}]}
TAGS = {"type": "array", "items": {"type": "string", "enum": ["new", "old", "odd"]}, "minItems": 1, "maxItems": 2}
TITLED_TAGS = {"type": "array", "items": {"anyOf": [{"const": "n", "title": "new"}]}}


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string", "format": "email"}, "ada@example.org", "ada@example.org"),
        ({"type": "string", "format": "date"}, "2026-02-28", "2026-02-28"),
        ({"type": "integer", "minimum": 1}, "5", 5),
        ({"type": "number"}, "0.5", 0.5),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "n", False),
        (COLOURS, "r", "r"),
        (COLOURS, "green", "g"),
        (COLOURS, "2", "g"),
        (SIZES, "2", "2"),  # a value goes before the number of a line
        (SIZES, "1", "s"),
        (TAGS, "1, odd", ["new", "odd"]),
        (TITLED_TAGS, "new", ["n"]),
        ({"enum": ["a", "b"]}, "2", "b"),
        ({"type": ["string", "null"]}, "x", "x"),
        ({"type": ["null", "integer"], "minimum": 1}, "5", 5),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, "x", "x"),
        ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, "y", True),
        ({"anyOf": [COLOURS, {"type": "null"}]}, "green", "g"),
        ({"anyOf": [TAGS, {"type": "null"}]}, "1, odd", ["new", "odd"]),
        ({"anyOf": [{"const": "n", "title": "new"}, {"const": "o"}, {"type": "null"}]}, "new", "n"),
        ({"type": ["string", "null"], "enum": ["r", None]}, "r", "r"),
        ({"type": "string", "const": "a", "title": "Only"}, "1", "a"),
        ({"type": "integer", "enum": [1, 2]}, "2", 2),
    ],
)
def test_typed_form_answer_is_converted_to_the_field_type(schema: dict[str, Any], typed: str, value: object):
    assert field(schema).value(typed) == value


@pytest.mark.parametrize(
    ("schema", "typed", "words"),
    [
        ({"type": "string", "minLength": 3}, "ab", "shorter than 3"),
        ({"type": "string", "format": "email"}, "nobody", "email"),
        ({"type": "string", "format": "date"}, "2026-02-30", "date"),
        ({"type": "string", "format": "uri"}, "not a uri", "uri"),
        ({"type": "integer"}, "1.5", "a whole number, please"),
        ({"type": "integer", "maximum": 3}, "4", "maximum of 3"),
        ({"anyOf": [{"type": "integer", "maximum": 3}, {"type": "null"}]}, "4", "maximum of 3"),
        ({"type": "number"}, "nan", "a number, please"),
        ({"type": "integer", "enum": [1, 2]}, "3", "not one of 1 or 2"),
        ({"type": "string", "const": "a"}, "", "not one of the choices"),
        ({"type": "number"}, "1e999", "a number, please"),
        ({"type": "boolean"}, "maybe", "answer y or n"),
        (COLOURS, "blue", "'blue' is not one of the choices; their numbers are 1 to 2"),
        (COLOURS, "3", "not one of the choices"),
        (COLOURS, "0", "not one of the choices"),
        (TAGS, "1,2,3", "more than 2"),
    ],
)
def test_typed_form_answer_that_does_not_fit_is_refused_with_the_reason(schema: dict[str, Any], typed: str, words: str):
    with pytest.raises(ValueError, match=words):
        field(schema).value(typed)


def test_form_field_with_a_schema_reference_offers_the_choices_of_the_referenced_schema() -> None:
    optional = {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}], "title": "Colour", "default": None}
    (only,) = form_fields({"properties": {"it": optional}, "$defs": {"Colour": COLOURS}})
    assert (only.title, only.required, only.default, only.value("green")) == ("Colour", False, None, "g")


def test_form_field_prompt_shows_the_default_that_an_empty_line_selects():
    assert field({"type": "string", "description": "Your name"}).question("Ada") == "Your name [Ada]"
    assert field({"type": "string", "title": "Name"}).question(None) == "Name (optional)"
    assert field({"type": "boolean"}, required=True).question(False) == "it (y/n) [n]"
    assert field(TAGS, required=True).question(["new", "old"]) == "it (numbers, with commas) [new, old]"


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ({"type": "integer", "default": 3}, 3),
        ({"type": "integer", "maximum": 2, "default": 3}, None),
        ({"type": "boolean", "default": False}, False),
        ({"type": "string", "default": {"a": 1}}, None),
        (COLOURS | {"default": "g"}, "g"),
        (COLOURS | {"default": "blue"}, None),
        (TAGS | {"default": ["old"]}, ["old"]),
        (TAGS | {"default": ["blue"]}, None),
        (TAGS | {"default": [["old"]]}, None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": "Ada"}, "Ada"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": "Ada"}, None),
        ({"type": ["string", "null"], "default": None}, None),
        ({"type": ["string", "null"], "format": "email", "default": "nobody"}, None),
        ({"type": "number", "exclusiveMinimum": 0, "default": 0}, None),
        ({"type": "string", "enum": ["a"], "default": 7}, None),
    ],
)
def test_invalid_default_of_a_form_field_is_ignored(schema: dict[str, Any], default: object):
    assert field(schema).default == default


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": []},
        {"properties": {"a": "string"}},
        {"properties": {"a": {"type": "object"}}},
        {"properties": {"a": {"type": ["string", "integer"]}}},
        {"properties": {"a": {"type": "null"}}},
        {"properties": {"a": {"anyOf": [{"type": "null"}]}}},
        {"properties": {"a": {"anyOf": [{"type": "object"}, {"type": "null"}]}}},
        {"properties": {"a": {"type": "array", "items": {"type": "string"}}}},
        {"properties": {"a": {"type": "string", "minLength": "three"}}},
    ],
)
def test_elicitation_schema_that_is_not_a_form_is_refused_with_invalid_params(schema: dict[str, Any]):
    with pytest.raises(CodedError) as caught:
        form_fields(schema)
    assert caught.value.code == -32602


def test_elicitation_form_with_too_many_fields_is_refused() -> None:
    with pytest.raises(CodedError, match="more than 20000 parts"):
        form_fields({"properties": {str(each): {"type": "string"} for each in range(20_000)}})
