"""Elicitation forms: a class with plain fields, as the flat JSON Schema the specification allows."""

from __future__ import annotations

from datetime import datetime
from types import UnionType
from typing import Annotated, Any, NotRequired, Required, Union, cast, get_args, get_origin, get_type_hints

from msgspec import inspect

from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...protocol.fields import JSONObject
from ...protocol.plain_classes import optional_fields
from ...protocol.types.elicitation import check_form_schema
from .signature import schema_of
from .unread_notes import check_fields


def form_schema(form: type | JSONObject) -> JSONObject:
    """Return the form's JSON Schema: a dict unchanged, a class translated.

    A field of a class that may be `None` is not required; plain strings in ``Annotated`` describe fields. Raises
    `CodedError` (-32602) for what is neither class nor dict, for a NamedTuple, which is an array in JSON, and, naming
    the field, for a form that is not flat; `TypeError` for a class that has no JSON Schema.
    """
    if isinstance(form, dict):
        check_form_schema(form)
        return form
    if not isinstance(form, type):  # pyright: ignore[reportUnnecessaryIsInstance] authors' own
        raise _no_form(form)
    try:
        schema = schema_of(form)
    except TypeError as error:
        raise TypeError(f"{form.__name__}: {error}") from None
    if schema.get("type") != "object":
        raise _no_form(form)
    check_fields(f"form {form.__name__}", form)
    definitions = cast("JSONObject", schema.pop("$defs", {}))
    optional, hints = set(optional_fields(form)), _hints(form)
    fields = {
        name: _flat(cast("JSONObject", field), definitions) | _said_beside(hints.get(name), field)
        for name, field in cast("JSONObject", schema.get("properties", {})).items()
    }
    required = [name for name in cast("list[str]", schema.get("required", [])) if name not in optional]
    # 2025-11-25 schema, ElicitRequestFormParams: no members but type, properties and required
    schema = {"type": schema.get("type"), "properties": fields, "required": required}
    check_form_schema(schema)
    return schema


def _no_form(form: object) -> CodedError:
    return CodedError(
        INVALID_PARAMS,
        f"Invalid params: a form is a class with fields, such as a dataclass, or a JSON Schema as a dict, not {form!r}",
    )


def _hints(form: type) -> dict[str, Any]:
    """Return the annotations of a class, under the names of the fields on the wire."""
    hints = get_type_hints(form, include_extras=True)
    return {field.encode_name: hints.get(field.name) for field in getattr(inspect.type_info(form), "fields", ())}


def _said_beside(hint: Any, field: JSONObject) -> JSONObject:
    """Return the facts of a field's annotation that its schema lacks: the description, and the format of a time."""
    notes, kinds = list[str](), list[Any]()
    _take_apart(hint, notes, kinds)
    said: JSONObject = {"description": notes[0]} if notes and "description" not in field else {}
    return said | ({"format": "date-time"} if datetime in kinds else {})


def _take_apart(hint: Any, notes: list[str], kinds: list[Any]) -> None:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        notes += [note for note in arguments[1:] if isinstance(note, str)]
        _take_apart(arguments[0], notes, kinds)
    elif origin in (Union, UnionType, Required, NotRequired):
        for each in arguments:
            _take_apart(each, notes, kinds)
    else:
        kinds.append(hint)


def _flat(field: JSONObject, definitions: JSONObject) -> JSONObject:
    """Return one property without references, and without null: a field that may be absent is just not required."""
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
        items = _flat(cast("JSONObject", items), definitions)
        if "enum" in items:  # items cannot have the title and the description of an Enum
            items = {"type": items["type"], "enum": items["enum"]}
        field = {**field, "items": items}
    if field.get("default", ...) is None:
        field = {key: value for key, value in field.items() if key != "default"}
    return field
