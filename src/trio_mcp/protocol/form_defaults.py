"""Default values in elicitation forms: which defaults are valid, and how they complete an answer."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, cast

import attrs

from ..jsonrpc.errors import CodedError
from .fields import JSONObject
from .types.elicitation import ElicitResult, check_form_size, content_fits

CHECKS_FORMATS: Final = "http://json-schema.org/draft-07/schema#"
"""The JSON Schema dialect of elicitation forms. Its validator also checks ``format``."""


def with_defaults(answer: ElicitResult, schema: JSONObject) -> ElicitResult:
    """Return ``answer`` with the defaults of the form ``schema`` added, if the user has accepted the form.

    Other answers are returned unchanged. 2025-11-25 elicitation, Requested Schema: defaults are the initial values of a
    form. A field that is `None` is omitted, and gets no default. If it is required and may be null, it is null instead.
    """
    if answer.action != "accept":
        return answer
    given = answer.content or {}
    content = {name: each for name, each in {**given, **fitting_defaults(schema), **given}.items() if each is not None}
    content = dict.fromkeys(required_nullable(schema)) | content
    return attrs.evolve(answer, content=content) if content or given else answer


def required_nullable(schema: JSONObject) -> list[str]:
    """Return the names of the required fields of the form ``schema`` whose value may be null.

    The specification doesn't allow them, but python-sdk sends them for an ``Optional`` field without a default.
    """
    fields, needed = _fields_of(schema), schema.get("required")
    names = cast("list[object]", needed) if isinstance(needed, list) else []
    return [name for name in names if isinstance(name, str) and _may_be_null(fields.get(name, {}))]


def _may_be_null(field: JSONObject) -> bool:
    lists = [[field], field.get("anyOf"), field.get("oneOf")]
    parts = [part for each in lists if isinstance(each, list) for part in cast("list[object]", each)]
    kinds = [cast("JSONObject", part).get("type") for part in parts if isinstance(part, dict)]
    return any("null" in (kind if isinstance(kind, list) else (kind,)) for kind in kinds)


def fitting_defaults(schema: JSONObject) -> JSONObject:
    """Return the valid defaults of the form ``schema``, keyed by field name.

    A default is invalid if it doesn't match its field, or if an answer can't contain it, such as null.
    """
    from .schema_validator import SchemaValidator  # import the validator only here, because few clients fill in forms

    found: JSONObject = {}
    with suppress(CodedError):
        check_form_size(schema)
        for name, field in _fields_of(schema).items():
            if (default := field.get("default")) is None or not content_fits({name: default}):
                continue
            with suppress(ValueError):  # `SchemaValidator` raises `ValueError` for an invalid schema
                if SchemaValidator({**field, "$schema": CHECKS_FORMATS}).faults(default) is not None:
                    continue
            found[name] = default
    return found


def with_fitting_defaults(schema: JSONObject) -> JSONObject:
    """Return the form ``schema`` without its invalid defaults: see `fitting_defaults`."""
    fields, fitting = _fields_of(schema), fitting_defaults(schema)
    without = {name: {**field} for name, field in fields.items() if name not in fitting}
    for field in without.values():
        field.pop("default", None)
    return {**schema, "properties": schema["properties"] | without} if without else schema


def _fields_of(schema: JSONObject) -> dict[str, JSONObject]:
    fields = cast("JSONObject", given if isinstance(given := schema.get("properties"), dict) else {})
    return {name: field for name, field in fields.items() if isinstance(field, dict)}
