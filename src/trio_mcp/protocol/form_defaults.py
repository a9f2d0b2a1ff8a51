"""Defaults in the forms of elicitations: which of them an answer may hold."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, cast

import attrs

from ..jsonrpc.errors import CodedError
from .fields import JSONObject
from .types.elicitation import ElicitResult, check_form_size, content_fits

CHECKS_FORMATS: Final = "http://json-schema.org/draft-07/schema#"
"""The dialect in which forms are checked: its validator checks ``format``, too."""


def with_defaults(answer: ElicitResult, schema: JSONObject) -> ElicitResult:
    """Return an accepted form with the defaults of ``schema`` in the fields it leaves out; other answers as they are.

    2025-11-25 elicitation, Requested Schema: defaults are what a form starts with. A field that is `None` is left out,
    and gets no default.
    """
    if answer.action != "accept":
        return answer
    given = answer.content or {}
    content = {name: each for name, each in {**given, **fitting_defaults(schema), **given}.items() if each is not None}
    return attrs.evolve(answer, content=content) if content or given else answer


def fitting_defaults(schema: JSONObject) -> JSONObject:
    """Return the defaults in the form ``schema`` by field, without those that don't fit their field, or that no answer
    may hold, such as null."""
    from .schema_validator import SchemaValidator  # late: few clients fill in forms

    fields: Any = schema.get("properties")
    found: JSONObject = {}
    with suppress(CodedError):
        check_form_size(schema)
        for name, field in cast("JSONObject", fields if isinstance(fields, dict) else {}).items():
            default = cast("JSONObject", field).get("default") if isinstance(field, dict) else None
            if default is None or not content_fits({name: default}):
                continue
            with suppress(ValueError):  # of a field that can't be checked alone
                if SchemaValidator({**field, "$schema": CHECKS_FORMATS}).faults(default) is not None:
                    continue
            found[name] = default
    return found


def with_fitting_defaults(schema: JSONObject) -> JSONObject:
    """Return the form ``schema`` with its `fitting_defaults` only."""
    fields: Any = schema.get("properties")
    if not isinstance(fields, dict):
        return schema
    shown, defaults = cast("JSONObject", fields).copy(), fitting_defaults(schema)
    for name in shown.keys() - defaults.keys():
        if isinstance(field := shown[name], dict):
            shown[name] = {key: value for key, value in cast("JSONObject", field).items() if key != "default"}
    return {**schema, "properties": shown}
