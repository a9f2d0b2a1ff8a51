"""Definitions of a schema are inlined where they are referred to, unless they are recursive."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from trio_mcp.protocol.inlining import inlined
from trio_mcp.protocol.schema_validator import SchemaValidator


def ref(name: str, **beside: Any) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}", **beside}


def schema(properties: dict[str, Any], **defs: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "$defs": defs}


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "title": "Point"}
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": ref("Tree")}, "at": ref("Point")}}


def test_schema_definition_is_inlined_at_each_of_its_references() -> None:
    pair = {"type": "array", "prefixItems": [ref("Point"), {"anyOf": [ref("Point"), {"type": "null"}]}]}
    assert inlined(schema({"a": ref("Point"), "b": ref("Pair")}, Point=POINT, Pair=pair)) == {
        "type": "object",
        "properties": {
            "a": POINT,
            "b": {"type": "array", "prefixItems": [POINT, {"anyOf": [POINT, {"type": "null"}]}]},
        },
    }


def test_schema_annotations_beside_a_reference_override_those_of_the_definition() -> None:
    found = inlined(schema({"a": ref("Point", description="here", title="A", default={"x": 1})}, Point=POINT))
    assert found["properties"]["a"] == {**POINT, "description": "here", "title": "A", "default": {"x": 1}}


def test_schema_constraints_beside_a_reference_are_combined_with_the_definition() -> None:
    found = inlined(schema({"a": ref("Point", required=["y"])}, Point=POINT))
    assert found["properties"]["a"] == {"required": ["y"], "allOf": [POINT]}


def test_recursive_schema_definition_is_kept_with_the_definitions_it_needs() -> None:
    other = {"type": "string"}
    found = inlined(schema({"a": ref("Tree"), "b": ref("Other")}, Tree=TREE, Point=POINT, Other=other, Unused=other))
    assert found["properties"] == {"a": ref("Tree"), "b": other}
    assert set(found["$defs"]) == {"Tree", "Point"}


def test_mutually_recursive_schema_definitions_are_kept() -> None:
    one, two = {"properties": {"two": ref("Two")}}, {"properties": {"one": ref("One")}}
    given = schema({"a": ref("One")}, One=one, Two=two)
    assert inlined(given) == given


def test_schema_references_to_the_older_definitions_keyword_are_inlined() -> None:
    given = {"properties": {"a": {"$ref": "#/definitions/Point"}}, "definitions": {"Point": POINT}}
    assert inlined(given) == {"properties": {"a": POINT}}


@pytest.mark.parametrize(
    "given",
    [
        {"type": "object", "properties": {"a": POINT}},
        schema({"a": {"$ref": "#/$defs/Other"}, "b": {"$ref": "https://example.com/x"}, "c": {"$ref": 3}}),
        {**schema({"a": ref("Point")}, Point=POINT), "$id": "https://example.com/schema"},
        schema({"a": ref("Point")}, Point={**POINT, "$anchor": "point"}),
        schema({"a": {"$ref": "#/$defs/Point/properties/x"}}, Point=POINT),
    ],
)
def test_inlining_leaves_a_schema_without_inlinable_references_unchanged(given: Any) -> None:
    assert inlined(given) in (given, {key: value for key, value in given.items() if key != "$defs"})


def test_inlining_leaves_names_and_data_that_look_like_schema_references_unchanged() -> None:
    given = schema(
        {"$ref": {"type": "string"}, "default": {"const": ref("Point")}, "e": {"enum": [ref("Point")]}}, Point=POINT
    )
    assert inlined(given)["properties"] == given["properties"]


def test_schema_that_would_become_too_large_by_inlining_keeps_its_references() -> None:
    doubling = {f"D{level}": {"allOf": [ref(f"D{level + 1}"), ref(f"D{level + 1}")]} for level in range(40)}
    given = schema({"a": ref("D0")}, **doubling, D40={"type": "string"})
    assert inlined(given) is given
    many = schema({f"p{each}": ref(f"D{each}") for each in range(500)}, **{f"D{each}": {} for each in range(500)})
    assert inlined(many) is many


LEAVES = st.sampled_from([{"type": "integer"}, {"type": "string", "minLength": 1}, ref("A"), ref("B", minimum=2)])
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda each: {"type": "array", "items": each}, inner),
        st.builds(lambda each: {"anyOf": each}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda each: {"type": "object", "properties": {"x": each}}, inner),
    ),
    max_leaves=5,
)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(0, 4), st.text(max_size=1)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.fixed_dictionaries({"x": inner})),
    max_leaves=4,
)


@settings(max_examples=examples(200))
@given(root=SCHEMAS, a=SCHEMAS, value=VALUES)
def test_inlined_schema_accepts_the_same_values_as_the_original(root: Any, a: Any, value: Any) -> None:
    given = {"properties": {"root": root}, "$defs": {"A": a, "B": {"type": "integer", "maximum": 3}}}
    try:
        before = SchemaValidator(given)
    except ValueError:  # what refers to itself in the same place is no usable schema
        return
    after = SchemaValidator(inlined(given))
    assert (before.faults({"root": value}) is None) == (after.faults({"root": value}) is None)
