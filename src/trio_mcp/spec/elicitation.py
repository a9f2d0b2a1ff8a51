"""Elicitation: a server asks the client's user, with a flat form or by sending them to a URL."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import attrs

from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from .fields import JSONObject, since
from .tasks import TaskMetadata

__all__ = [
    "ElicitFormParams",
    "ElicitParams",
    "ElicitResult",
    "ElicitURLParams",
    "check_form_schema",
    "check_url",
]


@attrs.frozen
class ElicitFormParams:
    """Ask for the fields of ``requested_schema``, a flat JSON Schema object. The mode stays unsaid on the wire."""

    message: str
    requested_schema: JSONObject
    task: TaskMetadata | None = since("2025-11-25", until="2025-11-25")


@attrs.frozen
class ElicitURLParams:
    """Send the user to ``url``. 2025-11-25 correlates the end by ``elicitation_id``."""

    message: str
    url: str
    elicitation_id: str | None = since("2025-11-25", until="2025-11-25")
    mode: Literal["url"] = since("2025-11-25", default="url")
    task: TaskMetadata | None = since("2025-11-25", until="2025-11-25")


ElicitParams: TypeAlias = ElicitFormParams | ElicitURLParams


@attrs.frozen
class ElicitResult:
    """What the user did. ``content`` comes with ``accept`` only: strings, numbers, booleans, lists of strings."""

    action: Literal["accept", "decline", "cancel"]
    content: JSONObject | None = None
    meta: JSONObject | None = None


_COMMON: Final = {"type", "title", "description", "default"}
_PROPERTY_KEYWORDS: Final[dict[str, set[str]]] = {
    "string": _COMMON | {"minLength", "maxLength", "format", "enum", "enumNames", "oneOf"},
    "number": _COMMON | {"minimum", "maximum"},
    "integer": _COMMON | {"minimum", "maximum"},
    "boolean": _COMMON,
    "array": _COMMON | {"minItems", "maxItems", "items"},
}
_FORMATS: Final = {"email", "uri", "date", "date-time"}


def check_form_schema(schema: object) -> None:
    """Raise `CodedError` (-32602) unless ``schema`` is a form: a flat object of primitive properties.

    2025-11-25 elicitation, Requested Schema: strings, numbers, booleans, single-select enums and arrays of
    enum strings; nothing nested. The error names the field.
    """
    if not isinstance(schema, dict):
        raise _bad_form("a form schema is a JSON Schema object")
    form = cast("JSONObject", schema)
    properties = form.get("properties")
    if form.get("type") != "object" or not isinstance(properties, dict):
        raise _bad_form('a form schema has "type": "object" and "properties"')
    for name, field in cast("JSONObject", properties).items():
        if not isinstance(field, dict):
            raise _bad_form(f"field {name!r} is no schema")
        _check_property(name, cast("JSONObject", field))


def _check_property(name: str, field: JSONObject) -> None:
    kind = field.get("type")
    allowed = _PROPERTY_KEYWORDS.get(kind) if isinstance(kind, str) else None
    if allowed is None:
        raise _bad_form(f"field {name!r} must be a string, number, integer, boolean or a list of choices, not {kind!r}")
    if unknown := sorted(set(field) - allowed):
        raise _bad_form(f"field {name!r} ({kind}) cannot have {', '.join(unknown)}")
    if "format" in field and field["format"] not in _FORMATS:
        raise _bad_form(f"field {name!r}: the format is one of {', '.join(sorted(_FORMATS))}")
    if kind == "array":
        _check_choices(name, field.get("items"))


def _check_choices(name: str, items: object) -> None:
    choices = cast("JSONObject", items) if isinstance(items, dict) else {}
    if not isinstance(choices.get("enum"), list) and not isinstance(choices.get("anyOf"), list):
        raise _bad_form(f"field {name!r}: a list offers its choices in items.enum or items.anyOf")


def check_url(url: str) -> None:
    """Raise `CodedError` (-32602) unless ``url`` is absolute, http or https, with a host."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        good = False
    if not good:
        raise CodedError(INVALID_PARAMS, "Invalid params: a URL elicitation needs an absolute http or https URL")


def _bad_form(reason: str) -> CodedError:
    return CodedError(INVALID_PARAMS, f"Invalid params: {reason}")


def content_fits(content: dict[str, Any]) -> bool:
    """Whether every value is one that an elicitation result may hold."""
    return all(
        isinstance(value, str | bool | int | float)
        or (isinstance(value, list) and all(isinstance(item, str) for item in cast("list[object]", value)))
        for value in content.values()
    )
