"""Convert a client's untrusted data to the classes that handlers request, and create elicitation forms.

A form is a class with simple fields. It is sent as the flat JSON Schema that the specification allows.
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
from ...protocol.revisions import Revision
from ...protocol.types.elicitation import check_form_schema
from ...protocol.types.lifecycle import ClientCapabilities
from ...protocol.user_types import convert, optional_fields, schema_of
from ..annotations import check_fields

if TYPE_CHECKING:
    from ...protocol.schema_validator import SchemaValidator

COMPLETE: Final = "notifications/elicitation/complete"

T = TypeVar("T")


@frozen
class ElicitAnswer:
    """The user's answer to an elicitation: accepted with values, declined, or cancelled."""

    action: Literal["accept", "decline", "cancel"]
    """What the user did: ``accept`` (filled in the form), ``decline``, or ``cancel`` (closed it without choosing)."""
    content: JSONObject | None = None
    """The form that the user filled in. `None` if the user didn't accept the form, or if the elicitation was a URL."""

    @property
    def value(self) -> Any:
        """The single value that the user entered, as JSON data, if you requested a single value. `None` if the user
        didn't accept."""
        return (self.content or {}).get(VALUE)

    @overload
    def as_(self, kind: type[T]) -> T | None: ...
    @overload
    def as_(self, kind: Any) -> Any: ...
    def as_(self, kind: Any) -> Any:
        """Return what the user entered, as an instance of ``kind``: the form's data, or its value if the form has a
        single field. Return `None` if the user didn't accept.

        Optional fields that the user left empty are `None`. Raises `ValueError` if the content doesn't fit ``kind``.
        """
        if self.action != "accept":
            return None
        content = self.content or {}
        if is_one_value(kind):
            return convert(content.get(VALUE), kind)
        return convert({**dict.fromkeys(optional_fields(kind)), **content}, kind)


def should_notify_completion(elicitation_id: str, revision: Revision, capabilities: ClientCapabilities) -> bool:
    """Return whether to notify this client when the user has completed a URL elicitation.

    Raises `ValueError` if the elicitation id isn't a non-empty string.
    """
    if not isinstance(elicitation_id, str) or not elicitation_id:  # pyright: ignore[reportUnnecessaryIsInstance] - for untyped code
        raise ValueError(f"the id of a URL elicitation must be a non-empty string, not {elicitation_id!r}")
    return COMPLETE in revision._methods and capabilities.supports("elicitation.url")


_SPECIFICATION: Final = f"{protocol.__name__}."


def typed(data: Any, kind: type[T]) -> T:
    """Return JSON data as an instance of ``kind``. JSON types aren't converted: a string doesn't become a number.

    Fields of a specification class have their JSON names in the data, and fields of other classes their Python names.
    Raises `ValueError` if the data doesn't fit, and `TypeError` if no JSON data can be converted to ``kind``.
    """
    try:
        return structure(data, kind) if _is_of_specification(kind) else convert(data, kind)
    except RecursionError:
        raise ValueError("the data is nested too deeply") from None


def typed_text(text: str, kind: type[T]) -> T:
    """Parse JSON text, and return it as an instance of ``kind``, like `typed`. For empty text, return ``kind()``.

    Raises `ValueError` for empty text if ``kind`` has fields without defaults.
    """
    if text:
        try:
            data = msgspec.json.decode(text)
        except RecursionError:
            raise ValueError("the data is nested too deeply") from None
        return typed(data, kind)
    if is_typeddict(kind):  # calling a TypedDict returns a plain dict, without validation
        return typed({}, kind)
    try:
        return kind()
    except TypeError as error:
        raise ValueError(f"cannot convert empty text to a class whose fields have no defaults: {error}") from None


def _is_of_specification(kind: Any) -> bool:
    """Return whether ``kind`` is a class of the MCP specification, or a list, union etc. of such classes."""
    classes = [part for part in hint_parts(kind) if isinstance(part, type) and attrs.has(part)]
    return any(each.__module__.startswith(_SPECIFICATION) for each in classes)


VALUE: Final = "value"
"""Name of the only field in an elicitation form that requests a single value."""


def is_one_value(kind: Any) -> bool:
    """Return whether ``kind`` is the type of a single form field, such as text, a number, a date, an Enum, a Literal or
    a list of choices. Return false for a class with fields."""
    if get_origin(kind) is Annotated:
        return is_one_value(get_args(kind)[0])
    if get_origin(kind) in (Literal, list):
        return True
    return isinstance(kind, type) and issubclass(kind, str | int | float | Enum | date)


_FORMS: Final = WeakKeyDictionary[type, "Form"]()


class Form:
    """An elicitation form: its JSON Schema, and the validation of the values that the user entered."""

    def __init__(self, form: type | JSONObject) -> None:
        self.schema = form_schema(form)

    @classmethod
    def of(cls, form: type | JSONObject) -> Form:
        """Return the elicitation form for a dict or a class. The form for a class is created only once. Raises the
        errors of `form_schema`."""
        if not isinstance(form, type):
            return cls(form)
        known = _FORMS.get(form)
        if known is None:
            known = _FORMS[form] = cls(form)
        return known

    def faults(self, content: JSONObject) -> str | None:
        """Return what is wrong with ``content``, the values in a form that the user accepted. Return `None` if the
        values are valid."""
        return self._validator.faults(content)

    @cached_property
    def _validator(self) -> SchemaValidator:
        from ...protocol.schema_validator import SchemaValidator  # lazy import: few servers use elicitation forms

        return SchemaValidator(self.schema)


def form_schema(form: type | JSONObject) -> JSONObject:
    """Return the JSON Schema of an elicitation form.

    A dict is returned unchanged, and a class becomes a form with its fields. Any other type, or a list of choices,
    becomes a form with the single field `VALUE`. If the list of choices is inside another list, the user can choose
    several.

    Fields that may be `None` aren't required. Plain strings in ``Annotated`` are descriptions of fields.

    Raises:
        CodedError: (-32602) If ``form`` is neither a class nor a dict, is a NamedTuple (an array in JSON), or isn't
            flat. The text then names the field.
        TypeError: If the class has no JSON Schema.
    """
    if isinstance(form, dict):
        check_form_schema(form)
        return form
    if isinstance(form, list | tuple) and form:
        return _one_field(_choice(cast("list[Any]", form)))
    if is_one_value(form):
        return _one_field(form)
    if not isinstance(form, type):  # pyright: ignore[reportUnnecessaryIsInstance] - for untyped code
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
    # By the schema of MCP 2025-11-25, an elicitation form may have only type, properties and required.
    schema = {"type": schema.get("type"), "properties": fields, "required": required}
    check_form_schema(schema)
    return schema


def _one_field(kind: Any) -> JSONObject:
    """Return the schema of an elicitation form with one field, for a value of the type ``kind``."""
    schema = schema_of(kind)
    field = _flat(schema) | _annotation_facts(kind, schema)
    form: JSONObject = {"type": "object", "properties": {VALUE: field}, "required": [VALUE]}
    check_form_schema(form)
    return form


def _choice(choices: list[Any]) -> Any:
    """Return a type for a form field in which the user chooses from ``choices``. If ``choices`` contains only another
    list, the user can choose several of that list's items."""
    if len(choices) == 1 and isinstance(choices[0], list | tuple):
        return list[_choice(cast("list[Any]", choices[0]))]
    names = tuple(each.value if isinstance(each, Enum) else each for each in choices)
    if not names or not all(isinstance(name, str) for name in names):
        raise _form_error(choices)
    return Literal[names]


def _form_error(form: object) -> CodedError:
    return CodedError(
        INVALID_PARAMS,
        "Invalid params: a form must be a class with fields, such as a dataclass, or a JSON Schema as a dict, or, for "
        f"one value, str, int, float, bool, an Enum, a Literal or a list of texts to choose from, not {form!r:.200}",
    )


def _hints(form: type) -> dict[str, Any]:
    """Return a dict with the annotations of a class. The keys are the JSON names of the fields."""
    hints = get_type_hints(form, include_extras=True)
    return {
        field.encode_name: hints.get(field.name) for field in getattr(msgspec.inspect.type_info(form), "fields", ())
    }


def _annotation_facts(hint: Any, field: JSONObject) -> JSONObject:
    """Return the parts of a field's JSON Schema that come from its annotation: a description, and the format of a date
    and time."""
    facts = list(_facts_in(hint))
    notes = [fact for fact in facts if isinstance(fact, str)]
    said: JSONObject = {"description": notes[0]} if notes and "description" not in field else {}
    return said | ({"format": "date-time"} if datetime in facts else {})


def _facts_in(hint: Any) -> Iterator[Any]:
    """Yield the types that a field's annotation allows, and the metadata in the annotation."""
    if get_origin(hint) in (Annotated, Union, UnionType, Required, NotRequired):
        for part in get_args(hint):
            yield from _facts_in(part)
    else:
        yield hint


def _flat(field: JSONObject) -> JSONObject:
    """Return the schema of a form field, without ``null`` as an allowed value. A form field is optional if ``required``
    doesn't list it."""
    if isinstance(branches := field.get("anyOf"), list):
        branches = [branch for branch in cast("list[JSONObject]", branches) if branch.get("type") != "null"]
        if len(branches) == 1:
            rest = {key: value for key, value in field.items() if key != "anyOf"}
            return _flat({**branches[0], **rest})
    if isinstance(items := field.get("items"), dict):
        items = _flat(cast("JSONObject", items))
        if "enum" in items:  # drop the title and description of an Enum: a form doesn't allow them for items
            items = {"type": items["type"], "enum": items["enum"]}
        field = {**field, "items": items}
    if field.get("default", ...) is None:
        field = {key: value for key, value in field.items() if key != "default"}
    return field
