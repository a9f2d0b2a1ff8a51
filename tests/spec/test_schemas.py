"""Schemas that authors hand over as dicts."""

from __future__ import annotations

import pytest

from trio_mcp.spec.schemas import SchemaValidator


def test_faults_are_named_with_their_place() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    faults = SchemaValidator(schema).faults({"a": [1, "x"]})
    assert faults is not None
    assert "a[1]" in faults


def test_what_fits_has_no_faults() -> None:
    assert SchemaValidator({"type": "string"}).faults("x") is None


def test_a_schema_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a usable JSON Schema"):
        SchemaValidator({"type": "strong"})


def test_another_document_is_never_fetched() -> None:
    with pytest.raises(ValueError, match="never fetched"):
        SchemaValidator({"$ref": "http://127.0.0.1:9/schema.json"})


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON Schema"):
        SchemaValidator({"$schema": "https://example.com/dialect", "type": "string"})


def test_draft_7_is_validated_as_draft_7() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}
    assert SchemaValidator(schema).faults([1]) is not None


def test_only_the_first_faults_are_told() -> None:
    faults = SchemaValidator({"items": {"type": "string"}}).faults([1] * 1000)
    assert faults is not None
    assert faults.count(";") == 4


def test_local_references_are_followed() -> None:
    schema = {"$defs": {"Name": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/Name"}}}
    assert SchemaValidator(schema).faults({"a": 1}) is not None
