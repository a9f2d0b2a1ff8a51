"""Elicitation forms: a class with plain fields, as the flat JSON Schema the specification allows."""

from __future__ import annotations

from typing import Any, cast

from ..spec.elicitation import check_form_schema
from ..spec.fields import JSONObject
from .signature import schema_of

__all__ = ["form_schema"]


def form_schema(form: type | JSONObject) -> JSONObject:
    """The form's JSON Schema: a dict as it is, a class translated.

    Raises `CodedError` (-32602), naming the field, for what is no flat form, and `TypeError` for a class
    that has no JSON Schema.
    """
    if isinstance(form, dict):
        check_form_schema(form)
        return form
    try:
        schema = schema_of(form)
    except TypeError as error:
        raise TypeError(f"{form.__name__}: {error}") from None
    definitions = cast("JSONObject", schema.pop("$defs", {}))
    schema.pop("additionalProperties", None)
    schema["properties"] = {
        name: _flat(cast("JSONObject", field), definitions)
        for name, field in cast("JSONObject", schema.get("properties", {})).items()
    }
    check_form_schema(schema)
    return schema


def _flat(field: JSONObject, definitions: JSONObject) -> JSONObject:
    """One property without references, and without null: a field that may be absent is just not required."""
    if isinstance(reference := field.get("$ref"), str):
        target = cast("JSONObject", definitions[reference.rpartition("/")[2]])
        field = {**target, **{key: value for key, value in field.items() if key != "$ref"}}
    if isinstance(branches := field.get("anyOf"), list):
        branches = [branch for branch in cast("list[JSONObject]", branches) if branch.get("type") != "null"]
        if len(branches) == 1:
            rest = {key: value for key, value in field.items() if key != "anyOf"}
            return _flat({**branches[0], **rest}, definitions)
    if "enum" in field:
        field = {"type": "string", **field}
        field["enum"] = [choice for choice in cast("list[Any]", field["enum"]) if choice is not None]
    if isinstance(items := field.get("items"), dict):
        field = {**field, "items": _flat(cast("JSONObject", items), definitions)}
    if field.get("default", ...) is None:
        del field["default"]
    return field
