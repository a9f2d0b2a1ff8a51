"""Validation of values with schemas that users pass as dicts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from trio_mcp.protocol.schema_validator import SchemaValidator


def test_schema_validation_error_contains_the_path() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    faults = SchemaValidator(schema).faults({"a": [1, "x"]})
    assert faults is not None
    assert "a[1]" in faults


@pytest.mark.parametrize(
    "foreign", [{"$ref": 5}, {"$ref": [5]}, {"properties": None}, {"properties": [1]}, {"allOf": [{"$ref": 5}]}, 7]
)
def test_schema_keywords_that_the_dialect_does_not_know_can_have_any_value(foreign: object) -> None:
    choices = {"anyOf": [{"enum": ["a"]}, {"enum": ["b"]}]}
    draft = "http://json-schema.org/draft-07/schema#"
    schema = {"$schema": draft, "not": {"type": "null"}, "items": choices, "prefixItems": [foreign]}
    faults = SchemaValidator(schema).faults(["c"])
    assert faults is not None
    assert "[0]" in faults


def test_schema_validator_finds_no_errors_in_a_valid_value() -> None:
    assert SchemaValidator({"type": "string"}).faults("x") is None


def test_schema_validator_refuses_an_invalid_schema() -> None:
    with pytest.raises(ValueError, match="the JSON Schema can't be used"):
        SchemaValidator({"type": "strong"})


def test_remote_schema_reference_is_never_fetched() -> None:
    with pytest.raises(ValueError, match="never fetched"):
        SchemaValidator({"$ref": "http://127.0.0.1:9/schema.json"})


def test_schema_validator_refuses_an_unknown_dialect() -> None:
    with pytest.raises(ValueError, match="JSON Schema"):
        SchemaValidator({"$schema": "https://example.com/dialect", "type": "string"})


def test_draft_7_schema_is_validated_as_draft_7() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}
    assert SchemaValidator(schema).faults([1]) is not None


def test_schema_validator_reports_only_the_first_five_errors() -> None:
    faults = SchemaValidator({"items": {"type": "string"}}).faults([1] * 1000)
    assert faults is not None
    assert faults.count(";") == 4


def test_schema_validator_follows_local_references() -> None:
    schema = {"$defs": {"Name": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/Name"}}}
    assert SchemaValidator(schema).faults({"a": 1}) is not None


WORDS = {
    "type": "object",
    "properties": {"words": {"type": "array", "items": {"type": "string"}}, "mode": {"enum": ["a", "b"]}},
    "required": ["words"],
}
TREE = {
    "$defs": {
        "node": {
            "anyOf": [
                {"type": "object", "properties": {"sum": {"$ref": "#/$defs/node"}}, "required": ["sum"]},
                {"type": "object", "properties": {"sum": {"$ref": "#/$defs/node"}, "kind": {"const": "b"}}},
                {"type": "integer"},
            ]
        }
    },
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/node"}, "name": {"type": "string"}},
}


PEAK = """
import sys
from pathlib import Path
from trio_mcp.server.calling.signature import BadArguments, UserFunction
from trio_mcp.protocol.schema_validator import SchemaValidator

def peak():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024

def tool(words: list[int]): ...

signature = UserFunction.of(tool)
def converted(value):
    try:
        signature.bind(value)
    except BadArguments as error:
        return str(error)

def checked(items):
    return SchemaValidator({"properties": {"words": {"type": "array", **items}}}).faults

check = eval(sys.argv[1])
value = {"words": [eval(sys.argv[2])] * 8_000_000 + [eval(sys.argv[3])]}  # 16 MiB of JSON, or more
assert check({"words": "x"}), "what is loaded once is loaded"
Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
before = peak()
assert check(value)
print(peak() - before)
"""


@pytest.mark.commands
@pytest.mark.parametrize(
    ("check", "item", "last"),
    [
        ("checked({'items': {'type': 'string'}})", "1", "1"),
        ("checked({'items': {'type': 'string'}})", "'a'", "1"),
        ("checked({'items': {'multipleOf': 0.01}})", "1", "1"),
        ("checked({'uniqueItems': True})", "10**30", "1"),
        ("converted", "'a'", "1"),
        ("converted", "1.0", "'a'"),
    ],
)
def test_schema_validator_uses_little_memory_for_a_large_value_with_many_errors(
    check: str, item: str, last: str
) -> None:
    command = [sys.executable, "-c", PEAK, check, item, last]
    megabytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(megabytes) < 50


def test_first_validation_error_of_a_large_value_contains_the_path() -> None:
    assert SchemaValidator(WORDS).faults({"words": ["a"] * 5000 + [1]}) == '1 is not of type "string" at words[5000]'
    large = {"words": ["a" * 100_000], "mode": "c"}
    assert SchemaValidator(WORDS).faults(large) == '"c" is not one of "a" or "b" at mode'
    assert SchemaValidator(WORDS).faults({"mode": "a", "x": "a" * 100_000}) == '"words" is a required property'


def test_large_invalid_value_is_refused_without_a_detailed_reason() -> None:
    faults = SchemaValidator(WORDS).faults({"words": ["a"] * 100_000 + [1]})
    assert faults == "a value is invalid for the schema, and too large or too deep to explain why at words"


def test_quoted_value_in_a_validation_error_is_truncated() -> None:
    faults = SchemaValidator({"items": {"type": "integer"}}).faults(["x" * 10_000])
    assert faults is not None
    assert len(faults) < 400


def test_validation_error_of_a_recursive_schema_is_found_without_trying_all_alternatives() -> None:
    tree: Any = "wrong"
    for _ in range(60):  # 2 to the power of 60 ways
        tree = {"sum": tree}
    faults = SchemaValidator(TREE).faults({"tree": tree, "name": "x"})
    assert faults == "a value is invalid for the schema, and too large or too deep to explain why at tree"
    assert SchemaValidator(TREE).faults({"tree": {"sum": 1}, "name": 3}) == '3 is not of type "string" at name'


def test_path_in_a_validation_error_may_contain_any_member_name() -> None:
    schema = {"properties": {"a/b~c d%": {"type": "array", "items": {"type": "string"}}}}
    faults = SchemaValidator(schema).faults({"a/b~c d%": [1] * 5000})
    assert faults == '1 is not of type "string" at a/b~c d%[0]'


def test_schema_validator_reports_a_value_nested_too_deeply_as_an_error() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    assert "256 levels" in (SchemaValidator({"items": {"type": "array"}}).faults(value) or "")


def test_schema_validator_limits_the_search_for_the_reason_of_a_deep_error() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}, "words": {"items": {"type": "string"}}}}
    value: Any = {"words": ["a"] * 50_000 + [1]}
    for _ in range(100):
        value = {"a": value}
    assert (SchemaValidator(schema).faults(value) or "").endswith("too deep to explain why at a.a.a.a.a.a")
