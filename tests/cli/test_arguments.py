"""Arguments as typed, in the types of the tool's schema."""

from collections.abc import Callable
from typing import Any

import pytest

from trio_mcp.cli.arguments import WrongArgument, arguments_typed, object_typed

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "loud": {"type": "boolean"},
        "words": {"type": "array", "items": {"type": "string"}},
        "options": {"type": "object"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "key": {"type": ["string", "integer"]},
        "level": {"enum": [1, 2]},
        "size": {"$ref": "#/$defs/Size"},
        "anything": {},
    },
    "$defs": {"Size": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("text=5", "5"),
        ("text=", ""),
        ("text=a=b", "a=b"),
        ('text="quoted"', '"quoted"'),
        ("count=5", 5),
        ("count=-5.0", -5),
        ("share=0.5", 0.5),
        ("share=2", 2),
        ("loud=true", True),
        ("loud=false", False),
        ('words=["a", "b"]', ["a", "b"]),
        ('options={"a": 1}', {"a": 1}),
        ("limit=3", 3),
        ("limit=null", None),
        ("key=3", 3),
        ("key=three", "three"),
        ("key=true", "true"),
        ("level=2", 2),
        ("size=9", 9),
        ("anything=[1]", [1]),
        ("anything=hello", "hello"),
        ("unknown=7", 7),
    ],
)
def test_argument_value_is_converted_to_the_type_of_its_schema(pair: str, value: object):
    name = pair.partition("=")[0]
    converted = arguments_typed([pair], SCHEMA)[name]
    assert (converted, type(converted)) == (value, type(value))


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("count=many", "argument 'count' must be an integer, not 'many'"),
        ("count=1.5", "argument 'count' must be an integer, not '1.5'"),
        ("count=true", "argument 'count' must be an integer, not 'true'"),
        ("share=NaN", "argument 'share' must be a number, not 'NaN'"),
        ("loud=yes", "argument 'loud' must be true or false, not 'yes'"),
        ("loud=1", "argument 'loud' must be true or false, not '1'"),
        ("words=a,b", "argument 'words' must be a JSON array, not 'a,b'"),
        ("options=[]", "argument 'options' must be a JSON object, not '[]'"),
        ("limit=x", "argument 'limit' must be one of integer | null, not 'x'"),
        ("level=x", "argument 'level' must be one of 1 | 2, not 'x'"),
        ("words=" + "[" * 100_000, "argument 'words' must be a JSON array"),
        ("count", "an argument must be like NAME=VALUE, not 'count'"),
        ("=5", "an argument must be like NAME=VALUE, not '=5'"),
        ('{"a": 5}', "an argument must be like NAME=VALUE, not '{\"a\": 5}': write all arguments with --args"),
    ],
)
def test_argument_value_that_does_not_fit_its_schema_raises_an_error_that_names_the_argument(pair: str, words: str):
    with pytest.raises(WrongArgument) as caught:
        arguments_typed([pair], SCHEMA)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("kind", ["", " ", "INTEGER", "\0", ["", ""]])
@pytest.mark.parametrize("around", [lambda it: it, lambda it: {"anyOf": [it]}, lambda it: {"allOf": [it, it]}])
def test_argument_with_a_type_unknown_to_json_schema_raises_wrong_argument(kind: Any, around: Callable[[Any], Any]):
    schema = {"type": "object", "properties": {"x": around({"type": kind})}}
    with pytest.raises(WrongArgument, match=r"must be of the type '.*', which JSON Schema does not have, not '5'"):
        arguments_typed(["x=5"], schema)


@pytest.mark.parametrize("kind", [[], [7], 7, None, {}])
def test_argument_whose_schema_has_a_malformed_type_keyword_accepts_any_value(kind: Any):
    schema = {"type": "object", "properties": {"x": {"type": kind}}}
    assert arguments_typed(["x=5"], schema) == {"x": 5}


@pytest.mark.parametrize("kind", ["", "file"])
def test_unknown_type_in_a_list_of_schema_types_is_ignored(kind: str):
    schema = {"type": "object", "properties": {"x": {"type": [kind, "integer"]}}}
    assert arguments_typed(["x=5"], schema) == {"x": 5}
    with pytest.raises(WrongArgument, match=r"must be one of .*integer, not 'five'"):
        arguments_typed(["x=five"], schema)


def test_argument_given_twice_on_the_command_line_is_refused():
    with pytest.raises(WrongArgument, match="'count' occurs twice"):
        arguments_typed(["count=1", "count=2"], SCHEMA)


def test_unknown_argument_is_refused_if_the_schema_forbids_additional_properties():
    with pytest.raises(WrongArgument, match="the tool has no argument 'c'; it has a, b"):
        arguments_typed(["c=1"], {"properties": {"a": {}, "b": {}}, "additionalProperties": False})


HOSTILE = "\x1b]0;mine\x07\n\x1b[2J"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {HOSTILE: {}, "b" * 1000: {}}, "additionalProperties": False},
        {"properties": {"c": {"type": HOSTILE}}},
        {"properties": {"c": {"type": ["integer", HOSTILE]}}},
        {"properties": {"c": {"enum": [1, [HOSTILE]]}}},
        {"properties": {str(number): {} for number in range(1000)}, "additionalProperties": False},
    ],
)
def test_error_for_a_malicious_schema_is_printable_and_short(schema: dict[str, Any]):
    with pytest.raises(WrongArgument) as caught:
        arguments_typed(["c=x"], schema)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_arguments_given_as_name_value_pairs_override_arguments_given_as_a_json_object():
    assert arguments_typed(["count=2"], SCHEMA, {"count": "as it is", "more": [1]}) == {"count": 2, "more": [1]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": }', "--args is not valid JSON: Expecting value: line 1 column 7"),
        ("[1]", "--args must be a JSON object"),
        ('{"a": NaN}', "--args: NaN is not valid JSON"),
        ("[" * 100_000, "--args"),
    ],
)
def test_invalid_json_object_passed_as_arguments_is_refused(text: str, words: str):
    with pytest.raises(WrongArgument) as caught:
        object_typed(text)
    assert str(caught.value).startswith(words)
