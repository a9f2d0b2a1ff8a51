"""Which schema keywords are checked for values of any size, and which only for small values."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp.protocol.schema_validator import SchemaBounds, SchemaValidator

MANY = [1] * 100_001
HUGE = 10**4000


def is_checked(schema: Any, value: Any) -> bool:
    return SchemaBounds(schema).exceeded(value) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": ["integer", "null"]}, "maxItems": 10**9},
        {"items": {"properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]}},
        {"prefixItems": [{"enum": ["a", None]}, True], "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        {"additionalProperties": False, "title": "T", "$defs": {"a": {"pattern": "a"}}},
        {},
    ],
)
def test_schema_keywords_that_are_fast_to_check_are_checked_for_values_of_any_size(schema: Any) -> None:
    assert is_checked(schema, MANY)
    assert is_checked(schema, {"a": [HUGE] * 1000})


@pytest.mark.parametrize(
    "dear",
    [
        {"multipleOf": 0.01},
        {"minimum": 0.5},
        {"pattern": "^a"},
        {"const": {"a": 1}},
        {"enum": [1.5, "a"]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"$ref": "#/$defs/a"},
        {"not": {"type": "string"}},
        {"what comes after 2020-12": 1},
    ],
)
def test_schema_keywords_that_are_slow_to_check_are_checked_only_for_small_values(dear: Any) -> None:
    for schema in (dear, {"items": dear}, {"additionalProperties": dear}, {"items": {"properties": {"a": dear}}}):
        assert is_checked(schema, MANY[1:])
        assert not is_checked(schema, MANY)
        assert not is_checked(schema, {"a": {"b": MANY}})


def test_large_property_is_accepted_if_only_other_properties_have_slow_schema_keywords() -> None:
    properties = {
        "path": {"pattern": "^/"},
        "text": {"type": "string"},
        "tags": {"uniqueItems": True},
        "more": {"items": {"type": "integer"}},
    }
    schema = {"type": "object", "properties": properties}
    assert is_checked(schema, {"path": "/a", "more": MANY, "text": "a" * 10_000_000, "tags": ["a"], "unknown": MANY})
    assert not is_checked(schema, {"path": MANY})
    assert not is_checked(schema, {"path": MANY[:60_000], "tags": MANY[:60_000]}), "they share what there is"
    assert is_checked(schema | {"not": {"required": ["a"]}}, {"path": "/a"})
    assert not is_checked(schema | {"not": {"required": ["a"]}}, {"more": MANY})


def test_numbers_that_are_slow_to_compare_count_more_towards_the_schema_check_limit() -> None:
    schema = {"uniqueItems": True}
    assert is_checked(schema, [HUGE])
    assert not is_checked(schema, [HUGE, HUGE + 1])
    assert is_checked(schema, [10**30 + each for each in range(50)])
    assert not is_checked(schema, [10**30 + each for each in range(100)])
    assert not is_checked(schema, [1.7e300] * 2500)
    assert is_checked(schema, [1.5, 0.0, -(2**63), 2**63] * 2500)


def test_size_limit_of_a_schema_check_shrinks_with_the_number_of_alternatives() -> None:
    branches = [{"type": "string"}] * 100
    assert is_checked({"items": {"anyOf": branches}}, MANY[:10_000])
    assert not is_checked({"items": {"anyOf": branches}}, MANY[:10_001])
    assert not is_checked({"items": {"enum": [*range(100)]}}, MANY[:10_001])
    assert is_checked({"items": {"pattern": "a"}, "minItems": 1, "contains": {"enum": ["a"] * 1000}}, MANY[:10_001])


def test_value_that_is_too_large_to_check_is_refused_without_running_the_validator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    validator = SchemaValidator({"properties": {"a": {"uniqueItems": True}}})
    assert validator.faults({"a": [1, 1]})
    monkeypatch.setattr(validator, "_validator", None)
    monkeypatch.setattr(validator, "_faults", None)
    fault = validator.faults({"a": MANY})
    assert fault is not None
    assert fault.startswith("too large to be checked: more than 100000 items and members")
