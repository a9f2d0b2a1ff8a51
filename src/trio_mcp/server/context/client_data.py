"""Untrusted data of clients, as the classes that handlers want; forms for users, and the answers.

A form is a class with plain fields, as the flat JSON Schema that the specification allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from enum import Enum
from functools import cached_property
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)
from weakref import WeakKeyDictionary

import attrs
import msgspec

from ... import protocol
from ...classes import frozen
from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...protocol.converters import structure
from ...protocol.fields import JSONObject, hint_parts
from ...protocol.foreign_types import readable
from ...protocol.plain_classes import convert, optional_fields
from ...protocol.revisions import Revision
from ...protocol.type_schemas import schema_of
from ...protocol.types.elicitation import check_form_schema
from ...protocol.types.lifecycle import ClientCapabilities
from ..annotations import check_fields

if TYPE_CHECKING:
    from ...protocol.schema_validator import SchemaValidator

COMPLETE: Final = "notifications/elicitation/complete"

T = TypeVar("T")


@frozen
class ElicitAnswer:
    """A user's answer to a question. ``content`` comes with ``accept`` only, and not for URLs."""

    action: Literal["accept", "decline", "cancel"]
    """Action of the user: filled in, declined, or closed the question without either."""
    content: JSONObject | None = None

    @property
    def value(self) -> Any:
        """The answer to a question for one value, as JSON data; `None` when the user did not accept."""
        return (self.content or {}).get(VALUE)

    @overload
    def as_(self, kind: type[T]) -> T | None: ...
    @overload
    def as_(self, kind: Any) -> Any: ...
    def as_(self, kind: Any) -> Any:
        """Return the accepted form, or the one value that was asked for, as a ``kind``; `None` when the user did not
        accept.

        Fields that the user left out and that may be `None` are `None`. Raises `ValueError` when the content does
        not fit.
        """
        if self.action != "accept":
            return None
        content = self.content or {}
        if is_one_value(kind):
            return convert(content.get(VALUE), kind)
        return convert({**dict.fromkeys(optional_fields(kind)), **content}, kind)


def should_notify_completion(elicitation_id: str, revision: Revision, capabilities: ClientCapabilities) -> bool:
    """Return whether such a client is told that an elicitation is complete. Raises `ValueError` for an id that is empty
    or no text."""
    if not isinstance(elicitation_id, str) or not elicitation_id:  # pyright: ignore[reportUnnecessaryIsInstance] authors' own
        raise ValueError(f"the id of a URL elicitation is a text that is not empty, not {elicitation_id!r}")
    return COMPLETE in revision._methods and capabilities.supports("elicitation.url")


_SPECIFICATION: Final = f"{protocol.__name__}."


def typed(data: Any, kind: type[T]) -> T:
    """Return JSON data as a ``kind``, strictly: members are named as on the wire in classes of the specification, and
    as the fields in all others. Raises `ValueError` when the data does not fit, and `TypeError` for a ``kind`` that no
    JSON data is."""
    try:
        return structure(data, kind) if _is_of_specification(kind) else convert(data, kind)
    except RecursionError:
        raise ValueError("the data is nested too deeply") from None


def typed_text(text: str, kind: type[T]) -> T:
    """Return a JSON text as `typed` does; for an empty text the default of ``kind``, else `ValueError`."""
    if text:
        try:
            data = msgspec.json.decode(text)
        except RecursionError:
            raise ValueError("the data is nested too deeply") from None
        return typed(data, kind)
    if is_typeddict(kind):  # calling a TypedDict gives a plain dict without checks
        return typed({}, kind)
    try:
        return kind()
    except TypeError as error:
        raise ValueError(f"there is nothing to be read, and no default: {error}") from None


def _is_of_specification(kind: Any) -> bool:
    """Return whether ``kind`` is a class of the specification, or a list or the like of such."""
    classes = [part for part in hint_parts(kind) if isinstance(part, type) and attrs.has(part)]
    return any(each.__module__.startswith(_SPECIFICATION) for each in classes)


VALUE: Final = "value"
"""The field of a form that asks for one value."""


def is_one_value(kind: Any) -> bool:
    """Return whether ``kind`` is a type of one field of a form, and no class with fields: text, a number, a boolean, an
    Enum, a Literal, or a list of choices."""
    if get_origin(kind) is Annotated:
        return is_one_value(get_args(kind)[0])
    if get_origin(kind) in (Literal, list):
        return True
    return isinstance(kind, type) and issubclass(kind, str | int | float | Enum | date)


_FORMS: Final = WeakKeyDictionary[type, "Form"]()


class Form:
    """A form that users are asked to fill in: its JSON Schema, and the check of what they have filled in."""

    def __init__(self, form: type | JSONObject) -> None:
        self.schema = form_schema(form)

    @classmethod
    def of(cls, form: type | JSONObject) -> Form:
        """Return the form that a dict or a class stands for; see `form_schema` for the errors. That of a class is made
        once."""
        if not isinstance(form, type):
            return cls(form)
        known = _FORMS.get(form)
        if known is None:
            known = _FORMS[form] = cls(form)
        return known

    def faults(self, content: JSONObject) -> str | None:
        """Return what is wrong with the accepted ``content``; `None` where it fits."""
        return self._validator.faults(content)

    @cached_property
    def _validator(self) -> SchemaValidator:
        from ...protocol.schema_validator import SchemaValidator  # late: few servers ask for forms

        return SchemaValidator(self.schema)


def form_schema(form: type | JSONObject) -> JSONObject:
    """Return the form's JSON Schema: a dict unchanged, a class translated, any other type, and a list of choices, as
    the one field `VALUE`. A list in a list lets the user choose several.

    A field of a class that may be `None` is not required; plain strings in ``Annotated`` describe fields. Raises
    `CodedError` (-32602) for what is neither class nor dict, for a NamedTuple, which is an array in JSON, and, naming
    the field, for a form that is not flat; `TypeError` for a class that has no JSON Schema.
    """
    if isinstance(form, dict):
        check_form_schema(form)
        return form
    if isinstance(form, list | tuple) and form:
        return _one_field(_choice(cast("list[Any]", form)))
    if is_one_value(form):
        return _one_field(form)
    if not isinstance(form, type):  # pyright: ignore[reportUnnecessaryIsInstance] authors' own
        raise _form_error(form)
    kind = readable(form)
    try:
        schema = schema_of(kind)
    except TypeError as error:
        raise TypeError(f"{form.__name__}: {error}") from None
    if schema.get("type") != "object":
        raise _form_error(form)
    check_fields(f"form {form.__name__}", kind)
    properties, hints, optional = cast("JSONObject", schema.get("properties", {})), _hints(kind), optional_fields(form)
    fields = {name: _flat(field) | _annotation_facts(hints.get(name), field) for name, field in properties.items()}
    required = [name for name in schema.get("required", []) if name not in optional]
    # 2025-11-25 schema, ElicitRequestFormParams: no members but type, properties and required
    schema = {"type": schema.get("type"), "properties": fields, "required": required}
    check_form_schema(schema)
    return schema


def _one_field(kind: Any) -> JSONObject:
    """Return the form of one value."""
    schema = schema_of(kind)
    field = _flat(schema) | _annotation_facts(kind, schema)
    form: JSONObject = {"type": "object", "properties": {VALUE: field}, "required": [VALUE]}
    check_form_schema(form)
    return form


def _choice(choices: list[Any]) -> Any:
    """Return the type of one of ``choices``, or of several where the choices are in a list of their own."""
    if len(choices) == 1 and isinstance(choices[0], list | tuple):
        return list[_choice(cast("list[Any]", choices[0]))]
    names = tuple(each.value if isinstance(each, Enum) else each for each in choices)
    if not names or not all(isinstance(name, str) for name in names):
        raise _form_error(choices)
    return Literal[names]


def _form_error(form: object) -> CodedError:
    return CodedError(
        INVALID_PARAMS,
        "Invalid params: a form is a class with fields, such as a dataclass, or a JSON Schema as a dict, or, for one "
        f"value, str, int, float, bool, an Enum, a Literal or a list of texts to choose from, not {form!r:.200}",
    )


def _hints(form: type) -> dict[str, Any]:
    """Return the annotations of a class, under the names of the fields on the wire."""
    hints = get_type_hints(form, include_extras=True)
    return {
        field.encode_name: hints.get(field.name) for field in getattr(msgspec.inspect.type_info(form), "fields", ())
    }


def _annotation_facts(hint: Any, field: JSONObject) -> JSONObject:
    """Return the facts of a field's annotation that its schema lacks: the description, and the format of a time."""
    facts = list(_facts_in(hint))
    notes = [fact for fact in facts if isinstance(fact, str)]
    said: JSONObject = {"description": notes[0]} if notes and "description" not in field else {}
    return said | ({"format": "date-time"} if datetime in facts else {})


def _facts_in(hint: Any) -> Iterator[Any]:
    """Yield the types that an annotation allows, and the notes beside them."""
    if get_origin(hint) in (Annotated, Union, UnionType, Required, NotRequired):
        for part in get_args(hint):
            yield from _facts_in(part)
    else:
        yield hint


def _flat(field: JSONObject) -> JSONObject:
    """Return one property without null: a field that may be absent is just not required."""
    if isinstance(branches := field.get("anyOf"), list):
        branches = [branch for branch in cast("list[JSONObject]", branches) if branch.get("type") != "null"]
        if len(branches) == 1:
            rest = {key: value for key, value in field.items() if key != "anyOf"}
            return _flat({**branches[0], **rest})
    if isinstance(items := field.get("items"), dict):
        items = _flat(cast("JSONObject", items))
        if "enum" in items:  # items cannot have the title and the description of an Enum
            items = {"type": items["type"], "enum": items["enum"]}
        field = {**field, "items": items}
    if field.get("default", ...) is None:
        field = {key: value for key, value in field.items() if key != "default"}
    return field
