"""Schemas of arguments, in words."""

import pytest

from trio_mcp.cli.terminal.schema_words import resolved, type_names, type_words

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
        ({}, "any"),
        (True, "any"),
    ],
)
def test_schema_is_said_in_a_word_or_a_few(schema: object, words: str):
    assert type_words(schema, ROOT) == words


@pytest.mark.parametrize(
    "reference", ["#/$defs/Round", "#/$defs/Nobody", "#/$defs/Size/type/deeper", "https://a.example/"]
)
def test_reference_that_leads_nowhere_says_nothing(reference: str):
    assert resolved({"$ref": reference}, ROOT) == {}


def test_choices_within_choices_without_end_come_to_an_end():
    schema: dict[str, object] = {}
    schema["anyOf"] = [schema]
    assert type_names(schema, {}) == set()
