"""Forms: flat objects of primitive fields (EL-04 to EL-12), what they hold, and URLs (EL-13, EL-14)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.long_names import ODD, given_to_codecs

from trio_mcp.jsonrpc.errors import INVALID_PARAMS, CodedError
from trio_mcp.protocol.types.elicitation import check_form_schema, check_url, content_fits, first_form

TITLED = [{"const": "n", "title": "North"}, {"const": "s", "title": "South"}]


def form(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


def refusal(schema: Any) -> str:
    with pytest.raises(CodedError) as caught:
        check_form_schema(schema)
    assert caught.value.code == INVALID_PARAMS
    return caught.value.message


FIELDS: dict[str, Any] = {
    "string": {"type": "string"},
    "described string": {"type": "string", "title": "Berth", "description": "Where to moor"},
    "bounded string": {"type": "string", "minLength": 0, "maxLength": 12, "default": "C7"},
    "email": {"type": "string", "format": "email"},
    "uri": {"type": "string", "format": "uri"},
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "number": {"type": "number", "minimum": -1.5, "maximum": 2, "default": 0.5},
    "integer": {"type": "integer", "minimum": 0.5, "maximum": 10, "default": 3},
    "integer with a whole default": {"type": "integer", "default": 3.0},
    "boolean": {"type": "boolean", "title": "Pets", "description": "Any?", "default": False},
    "enum": {"type": "string", "enum": ["n", "s"], "default": "n"},
    "legacy enum": {"type": "string", "enum": ["n", "s"], "enumNames": ["North", "South"], "default": "s"},
    "titled enum": {"type": "string", "oneOf": TITLED, "default": "n"},
    "several": {
        "type": "array",
        "items": {"type": "string", "enum": ["n", "s"]},
        "minItems": 0,
        "maxItems": 2,
        "default": ["n"],
    },
    "several titled": {"type": "array", "items": {"anyOf": TITLED}, "title": "Winds", "default": []},
}


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS.keys())
def test_each_field_type_of_the_specification_is_accepted_in_a_form(field: Any) -> None:
    check_form_schema(form(wind=field))


def test_elicitation_form_may_have_required_fields_title_and_description() -> None:
    schema = form(wind=FIELDS["enum"], force=FIELDS["integer"])
    schema |= {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "required": ["wind"],
        "title": "Forecast",
        "description": "What to expect",
        "additionalProperties": False,
    }
    check_form_schema(schema)


def test_elicitation_form_may_have_no_fields() -> None:
    check_form_schema(form())


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        "object",
        True,
        {},
        {"type": "string"},
        {"type": "object"},
        {"properties": {}},
        {"type": "object", "properties": []},
        {"type": ["object"], "properties": {}},
        {"type": "object", "properties": {}, "allOf": []},
        {"type": "object", "properties": {}, "$defs": {}},
        {"$ref": "#/$defs/Form", "type": "object", "properties": {}},
    ],
)
def test_schema_that_is_not_a_flat_object_is_refused_as_an_elicitation_form(schema: Any) -> None:
    assert "a form schema" in refusal(schema)


def test_form_schema_that_is_too_large_is_refused() -> None:
    far = {str(each): {"type": "number", "minimum": 10**4000, "default": 1} for each in range(20)}
    assert "more than 20000 parts" in refusal(form(**far)), "each takes long to be compared with"
    many: dict[str, Any] = {"type": "string", "enum": ["x"] * 20_000}
    assert "more than 20000 parts" in refusal(form(wind=many))
    assert "characters" in refusal(form(wind={"type": "string", "title": "x" * 1_000_001}))


@pytest.mark.parametrize("required", [None, "wind", ["sea"], [1], {"wind": True}])
def test_form_schema_that_requires_an_unknown_field_is_refused(required: Any) -> None:
    assert "required" in refusal(form(wind={"type": "string"}) | {"required": required})


BAD_FIELDS: dict[str, tuple[Any, str]] = {
    "no schema": (True, "must be a JSON Schema object"),
    "no type": ({}, "None"),
    "reference": ({"$ref": "#/$defs/Wind"}, "None"),
    "choice without a type": ({"enum": ["n"]}, "None"),
    "several types": ({"type": ["string", "null"]}, "null"),
    "null": ({"type": "null"}, "null"),
    "nested object": ({"type": "object", "properties": {}}, "object"),
    "unknown keyword": ({"type": "string", "pattern": "^n"}, "pattern"),
    "bound of another type": ({"type": "string", "minimum": 1}, "minimum"),
    "format of a number": ({"type": "number", "format": "email"}, "format"),
    "unknown format": ({"type": "string", "format": "hostname"}, "format"),
    "format that is no string": ({"type": "string", "format": ["email"]}, "format"),
    "fractional length": ({"type": "string", "minLength": 1.5}, "minLength"),
    "length in words": ({"type": "string", "maxLength": "9"}, "maxLength"),
    "length that is a boolean": ({"type": "string", "maxLength": True}, "maxLength"),
    "string with a number": ({"type": "string", "default": 3}, "default"),
    "string with null": ({"type": "string", "default": None}, "default"),
    "title that is no string": ({"type": "string", "title": 3}, "title"),
    "description that is no string": ({"type": "boolean", "description": []}, "description"),
    "minimum in words": ({"type": "number", "minimum": "0"}, "minimum"),
    "maximum that is a boolean": ({"type": "integer", "maximum": False}, "maximum"),
    "number with a string": ({"type": "number", "default": "3"}, "default"),
    "number with a boolean": ({"type": "number", "default": True}, "default"),
    "integer with a fraction": ({"type": "integer", "default": 1.5}, "default"),
    "boolean with a string": ({"type": "boolean", "default": "yes"}, "default"),
    "boolean with an integer": ({"type": "boolean", "default": 1}, "default"),
    "enum of numbers": ({"type": "string", "enum": ["n", 1]}, "enum"),
    "enum that is no list": ({"type": "string", "enum": "n"}, "enum"),
    "enum of a number field": ({"type": "integer", "enum": [1, 2]}, "enum"),
    "names without an enum": ({"type": "string", "enumNames": ["North"]}, "enumNames"),
    "names that are no strings": ({"type": "string", "enum": ["n"], "enumNames": [1]}, "enumNames"),
    "enum with a length": ({"type": "string", "enum": ["n"], "maxLength": 1}, "maxLength"),
    "enum and titles": ({"type": "string", "enum": ["n"], "oneOf": TITLED}, "oneOf"),
    "enum with a number": ({"type": "string", "enum": ["n"], "default": 1}, "default"),
    "titles of a plain list": ({"type": "string", "oneOf": ["n", "s"]}, "oneOf"),
    "titles without a title": ({"type": "string", "oneOf": [{"const": "n"}]}, "oneOf"),
    "titles of numbers": ({"type": "string", "oneOf": [{"const": 1, "title": "One"}]}, "oneOf"),
    "titles with more": ({"type": "string", "oneOf": [{"const": "n", "title": "N", "x": "y"}]}, "oneOf"),
    "titles of a single choice as anyOf": ({"type": "string", "anyOf": TITLED}, "anyOf"),
    "list without items": ({"type": "array"}, "items"),
    "list of strings": ({"type": "array", "items": {"type": "string"}}, "items"),
    "list of untyped choices": ({"type": "array", "items": {"enum": ["n"]}}, "items"),
    "list of numbers": ({"type": "array", "items": {"type": "integer", "enum": [1]}}, "items"),
    "list of number choices": ({"type": "array", "items": {"type": "string", "enum": [1]}}, "items"),
    "list of objects": ({"type": "array", "items": {"type": "object"}}, "items"),
    "list of oneOf": ({"type": "array", "items": {"oneOf": TITLED}}, "items"),
    "list of untitled anyOf": ({"type": "array", "items": {"anyOf": [{"const": "n"}]}}, "items"),
    "items that are no schema": ({"type": "array", "items": ["n"]}, "items"),
    "unique list": ({"type": "array", "items": {"anyOf": TITLED}, "uniqueItems": True}, "uniqueItems"),
    "list bounds in words": ({"type": "array", "items": {"anyOf": TITLED}, "minItems": "1"}, "minItems"),
    "list with a string": ({"type": "array", "items": {"anyOf": TITLED}, "default": "n"}, "default"),
    "list with numbers": ({"type": "array", "items": {"anyOf": TITLED}, "default": [1]}, "default"),
}


@pytest.mark.parametrize(("field", "fault"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_form_field_of_a_type_outside_the_specification_is_refused_and_the_error_names_the_field(
    field: Any, fault: str
) -> None:
    message = refusal(form(fine={"type": "string"}, gusts=field))
    assert "'gusts'" in message
    assert fault in message


# The form of 2025-06-18


def test_titles_of_choices_are_written_as_enum_names_in_forms_of_revision_2025_06_18() -> None:
    assert first_form(form(wind=FIELDS["titled enum"]))["properties"]["wind"] == {
        "type": "string",
        "enum": ["n", "s"],
        "enumNames": ["North", "South"],
    }


def test_only_boolean_fields_keep_their_default_in_forms_of_revision_2025_06_18() -> None:
    old = first_form(form(pets=FIELDS["boolean"], force=FIELDS["integer"], berth=FIELDS["bounded string"]))
    assert old["properties"]["pets"] == FIELDS["boolean"]
    assert "default" not in old["properties"]["force"]
    assert "default" not in old["properties"]["berth"]


def test_conversion_of_a_form_to_revision_2025_06_18_does_not_modify_the_given_schema() -> None:
    schema = form(wind=dict(FIELDS["titled enum"])) | {"required": ["wind"]}
    assert first_form(schema)["required"] == ["wind"]
    assert schema["properties"]["wind"] == FIELDS["titled enum"]


def test_list_of_choices_is_refused_in_forms_of_revision_2025_06_18() -> None:
    with pytest.raises(ValueError, match="'winds' is a list of choices"):
        first_form(form(winds=FIELDS["several"]))


# What an answer holds


@pytest.mark.parametrize("value", ["", "n", 0, 1.5, True, False, [], ["n", "s"]])
def test_elicitation_answer_may_contain_primitives_and_lists_of_strings(value: Any) -> None:
    assert content_fits({"wind": value})


@pytest.mark.parametrize("value", [None, {}, [1], [None], [["n"]], ["n", 1]])
def test_elicitation_answer_with_a_null_or_object_or_list_of_non_strings_is_refused(value: Any) -> None:
    assert not content_fits({"fine": "n", "wind": value})


# URLs


@pytest.mark.parametrize(
    "url", ["https://example.org", "http://[::1]:8080/a?b=c#d", "HTTPS://EXAMPLE.ORG/x", "http://user@host"]
)
def test_absolute_web_url_is_accepted_for_elicitation(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "/login",
        "//example.org/login",
        "https:",
        "https:///path",
        "http://",
        "ftp://example.org",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "mailto:a@example.org",
        "http://[::1",
        "https://example.org/a b",
        "https://exam\nple.org",
        " https://example.org",
    ],
)
def test_relative_and_non_web_urls_are_refused_for_elicitation(url: str) -> None:
    with pytest.raises(CodedError) as caught:
        check_url(url)
    assert caught.value.code == INVALID_PARAMS


@pytest.mark.parametrize("form", ["https://{}/login", "https://{}", "//{}/", "https:{}"])
def test_at_most_300_characters_of_a_long_host_name_in_an_elicitation_url_are_decoded(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = given_to_codecs(monkeypatch)
    with pytest.raises(CodedError):
        check_url(form.format(ODD * 5000))
    assert max(lengths, default=0) <= 300


def test_elicitation_form_schema_can_have_an_infinite_maximum() -> None:
    check_form_schema(form(force={"type": "number", "maximum": math.inf}))
