"""Schemas reduced to keywords that models and hosts accept."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from trio_mcp.protocol.inlining import portable

AB = {"type": "string", "enum": ["b", "a"]}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": ["b", "a"]}, AB),
        ({"enum": ["b", "a", "b"], "title": "T"}, AB | {"title": "T"}),
        ({"enum": [2, 1]}, {"type": "integer", "enum": [2, 1]}),
        ({"enum": [True]}, {"type": "boolean", "enum": [True]}),
        ({"enum": [0.5, 1.5]}, {"type": "number", "enum": [0.5, 1.5]}),
        ({"const": "a"}, {"type": "string", "const": "a"}),
        ({"enum": ["b", None, "a"]}, {"anyOf": [AB, {"type": "null"}]}),
        (
            {"enum": ["b", 1, True, "a"], "default": 1},
            {"default": 1, "anyOf": [AB, {"type": "integer", "enum": [1]}, {"type": "boolean", "enum": [True]}]},
        ),
        ({"enum": ["b", 1], "anyOf": [{}]}, None),
        (
            {"enum": [[1, 2], {"a": 1}]},
            {"anyOf": [{"type": "array", "enum": [[1, 2]]}, {"type": "object", "enum": [{"a": 1}]}]},
        ),
        ({"const": [1, 2]}, {"type": "array", "const": [1, 2]}),
        ({"type": "number", "default": math.inf, "minimum": -math.inf}, {"type": "number"}),
        ({"type": "number", "default": math.nan}, {"type": "number"}),
        ({"enum": []}, None),
        ({"type": ["string", "null"], "enum": ["a", None]}, None),
        ({"type": "string", "format": "path"}, {"type": "string"}),
        ({"type": "integer", "format": "int64"}, {"type": "integer"}),
        ({"type": "string", "format": "byte"}, {"type": "string", "contentEncoding": "base64"}),
        ({"type": "string", "format": "date-time"}, None),
        ({"format": {"type": "string"}}, None),
        ({"anyOf": [{}, {}], "discriminator": {"propertyName": "kind"}}, {"anyOf": [{}, {}]}),
        ({"propertyNames": {"enum": ["a"]}}, {"propertyNames": {"type": "string", "enum": ["a"]}}),
        ({"propertyNames": {"enum": [1, 2]}}, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["root", "items", "named", "definition", "branch"])
def test_schema_for_language_models_replaces_only_keywords_that_they_refuse(
    place: str, schema: Any, expected: Any
) -> None:
    def placed(part: Any) -> Any:
        return {
            "root": part,
            "items": {"items": {"prefixItems": [part]}},
            "named": {"properties": {"enum": part, "format": part}},
            "definition": {"$defs": {"discriminator": part}},
            "branch": {"anyOf": [{"additionalProperties": part}, {"not": part}]},
        }[place]

    given = placed(schema)
    before = copy.deepcopy(given)
    made = portable(given)
    assert given == before
    assert made == placed(schema if expected is None else expected)
    assert (made is given) == (expected is None)


@pytest.mark.parametrize("keyword", ["default", "const", "examples", "x-author"])
def test_schema_for_language_models_keeps_data_that_looks_like_keywords(keyword: str) -> None:
    data = {"type": "object", keyword: {"enum": [1], "format": "path"}}
    assert portable(data) == data
