"""Short descriptions of argument schemas."""

import pytest

from trio_mcp.cli.arguments import SchemaReader

ROOT = {"$defs": {"Size": {"type": "integer"}, "Round": {"$ref": "#/$defs/Round"}, "a/b": {"type": "boolean"}}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["integer", "null"]}, "integer | null"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Size"}]}, "integer | string"),
        ({"enum": ["red", "green"]}, "red | green"),
        ({"enum": [1, 2, 3, 4, 5, 6, 7]}, "1 | 2 | 3 | 4 | 5 | 6 | …"),
        ({"type": "array", "items": {"type": "number"}}, "array of number"),
        ({"type": "array"}, "array"),
        ({"$ref": "#/$defs/a~1b"}, "boolean"),
        ({"const": None}, "null"),
        ({"enum": [True, None, [1], {"a": 1}]}, "true | null | […] | {…}"),
        ({"type": ["x" * 1000, "null"]}, "null | " + "x" * 60),
        ({}, "any"),
        (True, "any"),
    ],
)
def test_schema_reader_describes_a_type_in_a_few_words(schema: object, words: str):
    assert SchemaReader().words(schema, ROOT) == words


@pytest.mark.parametrize(
    "reference", ["#/$defs/Round", "#/$defs/Nobody", "#/$defs/Size/type/deeper", "https://a.example/"]
)
def test_schema_reader_returns_an_empty_schema_for_an_unresolvable_reference(reference: str):
    assert SchemaReader().resolved({"$ref": reference}, ROOT) == {}


def test_schema_reader_finds_no_type_names_in_a_schema_that_contains_itself():
    schema: dict[str, object] = {}
    schema["anyOf"] = [schema]
    assert SchemaReader().type_names(schema, {}) == set()


def test_description_of_a_schema_that_references_itself_twenty_times_needs_few_steps():
    root = {"$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}] * 20 + [{"type": "string"}]}}}
    reader = SchemaReader(steps=100)
    assert reader.type_names({"$ref": "#/$defs/n"}, root) == {"string"}
    assert not reader.exhausted


def test_schema_description_is_an_ellipsis_after_the_maximum_number_of_steps():
    reader = SchemaReader(steps=100)
    wide = {"anyOf": [{"const": number} for number in range(1000)]}
    assert (reader.type_names(wide, {}), reader.words(wide, {})) == (set(), "…")
    assert reader.words({"type": "string"}, {}) == "…"


def test_long_schema_reference_counts_as_many_steps_when_a_schema_is_described():
    reference = {"$ref": "#/" + "a/" * 10_000}
    reader = SchemaReader(steps=1000)
    assert [reader.words(reference, {}) for _ in range(3)] == ["any", "…", "…"]
