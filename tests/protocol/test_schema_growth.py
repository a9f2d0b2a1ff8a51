"""Schemas whose references multiply are checked or refused quickly."""

from __future__ import annotations

from functools import partial
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from trio_mcp.protocol.schema_growth import SchemaGrowth, _graph_of
from trio_mcp.protocol.schema_validator import SchemaEvaluation, SchemaValidator

LAST = {"type": "integer"}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def twice(keyword: str, levels: int = 40, last: Any = LAST) -> dict[str, Any]:
    """A schema whose definitions each name the next one twice."""
    defs: dict[str, Any] = {f"d{n}": {keyword: [ref(f"d{n + 1}"), ref(f"d{n + 1}")]} for n in range(levels)}
    return {**ref("d0"), "$defs": {**defs, f"d{levels}": last}}


def below_twice(levels: int) -> dict[str, Any]:
    """The same, each in the next level of a value; the last leads to the first again."""
    defs: dict[str, Any] = {
        f"d{n}": {"allOf": [{"properties": {"x": ref(f"d{(n + 1) % levels}")}}] * 2} for n in range(levels)
    }
    return {**ref("d0"), "$defs": defs, "type": ["object", "integer"]}


def nested(levels: int, last: Any = 1) -> Any:
    value = last
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_schema_with_forty_definitions_that_each_refer_twice_to_the_next_is_refused(keyword: str) -> None:
    with pytest.raises(ValueError, match="so many nested references"):
        SchemaValidator(twice(keyword))


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_schema_with_ten_definitions_that_each_refer_twice_to_the_next_is_checked(keyword: str) -> None:
    validator = SchemaValidator(twice(keyword, 10))
    assert (validator.faults(1) is None) == (keyword != "oneOf")
    assert validator.faults("x") is not None


def test_deep_value_is_checked_even_if_the_number_of_schema_references_doubles_at_each_level() -> None:
    validator = SchemaValidator(below_twice(8))
    assert validator.faults(nested(100)) is None
    wide = {**below_twice(8), "$defs": {**below_twice(8)["$defs"], "d3": {"type": "string"}}}
    assert SchemaValidator(wide).faults(nested(43)) is not None


def test_validation_error_contains_the_path_even_if_schema_references_double_at_each_level() -> None:
    defs = below_twice(8)["$defs"]
    schema = {"properties": {"a": {"items": {**ref("d0"), "type": ["object"]}}}, "$defs": defs}
    faults = SchemaValidator(schema).faults({"a": [nested(100), 1]})
    assert faults is not None
    assert faults.endswith("at a[1]")


def test_deep_value_is_checked_if_all_schema_alternatives_refer_to_each_other() -> None:
    kinds = {
        f"d{n}": {"properties": {"kind": {"const": n}, "x": {"anyOf": [*(ref(f"d{m}") for m in range(8)), LAST]}}}
        for n in range(8)
    }
    value: Any = 1
    for level in range(60):
        value = {"x": value, "kind": level % 8}
    schema = {"anyOf": [ref(name) for name in kinds], "$defs": kinds}
    assert SchemaValidator(schema).faults(value) is None


@pytest.mark.parametrize(
    "schema",
    [
        {**ref("a"), "$defs": {"a": ref("b"), "b": ref("a")}},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {**twice("allOf", 20), "unevaluatedProperties": False},
        {
            "$defs": {"a": {"$anchor": "a"}, "b": {"anyOf": [{"$ref": "#a"}] * 200_000}},
            "items": {"allOf": [ref("b")] * 100},
        },
    ],
)
def test_schema_whose_number_of_references_cannot_be_computed_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match="so many nested references"):
        SchemaValidator(schema)


def test_unevaluated_properties_keyword_is_ignored_if_schema_references_double_at_each_level() -> None:
    schema = below_twice(8)
    schema["$defs"]["d3"]["unevaluatedProperties"] = {"type": "object"}
    faults = SchemaValidator(schema).faults(nested(100))
    assert faults is not None
    assert "too large to be checked" in faults


TREE = {"items": ref("tree"), "additionalProperties": ref("tree"), "anyOf": [LAST, {"type": ["array", "object"]}]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {str(n): {"type": "string"} for n in range(1000)}},
        {**ref("tree"), "$defs": {"tree": TREE}},
        {"properties": {"a": {"$ref": "#"}, "b": {"items": {"$ref": "#"}}}},
    ],
)
def test_common_schemas_are_checked_with_the_fast_validator_whatever_the_value_is(schema: Any) -> None:
    growth = SchemaGrowth(schema)
    assert not growth.exceeded(None)
    assert growth._is_harmless  # pyright: ignore[reportPrivateUsage]


def test_schema_evaluation_uses_a_bounded_amount_of_memory() -> None:
    schema = {**below_twice(8), "type": ["object", "array"], "items": ref("d0")}
    faults = SchemaValidator(schema).faults([*([n] for n in range(300, 20_000)), nested(100)])
    assert faults is not None
    assert "too large to be checked" in faults


# What is evaluated here and what jsonschema-rs evaluates are the same

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b", "ab"]) | st.just(1.5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=8,
)
PLAIN = st.sampled_from(
    [
        True,
        False,
        {},
        {"type": "integer"},
        {"type": ["string", "null"]},
        {"minimum": 1},
        {"required": ["a"]},
        {"minItems": 1},
        {"const": "a"},
        {"enum": [1, None, []]},
        {"maxProperties": 1},
        ref("one"),
        ref("two"),
    ]
)


def _schemas(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    listed = st.lists(below, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from("abc"), below, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), listed),
            **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "additionalProperties"), below),
            "propertyNames": PLAIN,
            **dict.fromkeys(("properties", "dependentSchemas"), named),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "[bc]"]), below, max_size=2),
            "minContains": st.integers(0, 2),
            "type": st.sampled_from(["object", "array", "string"]),
        },
    )


@settings(max_examples=examples(400), deadline=None)
@given(st.recursive(PLAIN, _schemas, max_leaves=12), st.recursive(PLAIN, _schemas, max_leaves=6), VALUES)
def test_memoized_schema_evaluation_gives_the_same_result_as_the_validator(schema: Any, one: Any, value: Any) -> None:
    whole: dict[str, Any] = {"allOf": [schema], "$defs": {"one": one, "two": {"properties": {"a": schema}}}}
    validator = jsonschema_rs.validator_for(whole)
    try:
        found = SchemaEvaluation(whole, partial(jsonschema_rs.validator_for)).fits(whole, value)
    except Exception as error:
        assume(type(error).__name__ != "TooManyEvaluations")  # it refers to itself in one place
        raise
    assert found == validator.is_valid(value)


def test_schema_parts_without_references_are_counted_as_one_part() -> None:
    names = {f"p{number}": {"type": "string"} for number in range(1000)}
    references = [{"$ref": "#/$defs/a"}] * 1000
    _, parts = _graph_of({"properties": names, "anyOf": references, "$defs": {"a": {"items": {"type": "integer"}}}})
    assert len(parts) == 4
