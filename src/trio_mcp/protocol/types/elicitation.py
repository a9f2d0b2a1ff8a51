"""Elicitation: a server requests input from the client's user, with a form or by sending the user to a URL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast
from unicodedata import category
from urllib.parse import urlsplit

from ...classes import value
from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...jsonrpc.sizes import MOST_LEVELS, is_checkable, is_small
from ...lazy import lazy_pattern
from ..fields import JSONObject, as_object, since
from .tools import TaskMetadata

_MOST_PARTS: Final = 20_000
_MOST_CHARACTERS: Final = 1_000_000
_BEGINNING: Final = lazy_pattern(r"https?://[^/?#]{1,300}(?![^/?#])", re.IGNORECASE)
"""Pattern of the scheme and authority of a URL. Host names have at most 253 characters."""


@value
class ElicitFormParams:
    """Parameters of an elicitation request with a form.

    ``requested_schema`` is a JSON Schema object without nesting. The mode isn't sent.
    """

    message: str
    """Text that tells the user which information the server requests."""
    requested_schema: JSONObject
    """JSON Schema of the form: an object without nested properties."""
    task: TaskMetadata | None = since("2025-11-25", until="2025-11-25")
    """Runs the request as a background task (2025-11-25 only); `None` for a normal request."""
    meta: JSONObject | None = since("2024-11-05", until="2025-11-25")
    """The ``_meta`` object, for metadata (legacy revisions only)."""


@value
class ElicitURLParams:
    """Parameters of an elicitation request that sends the user to the web page ``url``.

    In 2025-11-25, ``elicitation_id`` is required: the notification that the user has finished contains it.
    """

    _SINCE: ClassVar = "2025-11-25"

    message: str
    """Text that tells the user why to visit the URL."""
    url: str
    """The URL for the user to visit, with the scheme http or https."""
    elicitation_id: str | None = since("2025-11-25", until="2025-11-25")
    """Unique id of the elicitation (2025-11-25 only, where it is required)."""
    mode: Literal["url"] = "url"
    """Always ``url``."""
    task: TaskMetadata | None = since("2025-11-25", until="2025-11-25")
    """Runs the request as a background task (2025-11-25 only); `None` for a normal request."""
    meta: JSONObject | None = since("2025-11-25", until="2025-11-25")
    """The ``_meta`` object, for metadata (legacy revisions only)."""


ElicitParams: TypeAlias = ElicitFormParams | ElicitURLParams


@value
class ElicitResult:
    """The result of an elicitation request, which is the user's answer.

    ``content`` is present only with ``accept``, and contains strings, numbers, booleans and lists of strings.
    """

    action: Literal["accept", "decline", "cancel"]
    """``accept`` if the user agreed, ``decline`` if the user refused, ``cancel`` if the user didn't choose."""
    content: JSONObject | None = None
    """Values that the user entered, by property name; `None` unless a form was accepted."""
    meta: JSONObject | None = since("2024-11-05", until="2025-11-25")
    """The ``_meta`` object, for metadata (legacy revisions only)."""


def check_form_schema(schema: object) -> None:
    """Raise `CodedError` (-32602) if ``schema`` isn't a valid form.

    A form is an object whose properties aren't nested. 2025-11-25 elicitation, Requested Schema: strings, numbers,
    booleans, single-select enums and arrays of enum strings. Nothing may be nested, and no other keywords are allowed.
    The error names the field. A schema that is too large for people to fill in is refused as well.
    """
    if not isinstance(schema, dict):
        raise _bad("a form schema must be a JSON Schema object")
    form = cast("JSONObject", schema)
    check_form_size(form)
    properties = form.get("properties")
    if form.get("type") != "object" or not isinstance(properties, dict):
        raise _bad('a form schema must have "type": "object" and "properties"')
    if unknown := sorted(set(form) - _FORM_KEYWORDS):
        raise _bad(f"a form schema cannot have {', '.join(unknown)}")
    fields = cast("JSONObject", properties)
    required: Any = form.get("required", [])
    if not _are_strings(required) or not set(required) <= set(fields):
        raise _bad('"required" must be a list of property names')
    for name, field in fields.items():
        _check_field(name, field)


def check_form_size(form: JSONObject) -> None:
    """Raise `CodedError` (-32602) if the form schema ``form`` is too large to be checked.

    No user could fill in such a form.
    """
    if not (is_small(form, _MOST_PARTS, _MOST_CHARACTERS, MOST_LEVELS) and is_checkable(form, _MOST_PARTS)):
        raise _bad(f"the form schema has more than {_MOST_PARTS} parts or {_MOST_CHARACTERS} characters")


def _check_field(name: str, field: object) -> None:
    if not isinstance(field, dict):
        raise _bad(f"field {name!r} must be a JSON Schema object")
    members = cast("JSONObject", field)
    kind = members.get("type")
    keywords = _FIELDS.get(kind) if isinstance(kind, str) else None
    if kind == "string":
        keywords = _CHOICE if "enum" in members else _TITLED_CHOICE if "oneOf" in members else _TEXT
    if keywords is None:
        raise _bad(f"field {name!r} must be a string, number, integer, boolean or a list of choices, not {kind!r}")
    if unknown := sorted(set(members) - set(keywords)):
        raise _bad(f"field {name!r} ({kind}) cannot have {', '.join(unknown)}")
    for keyword, setting in members.items():
        fits, words = keywords[keyword]
        if not fits(setting):
            raise _bad(f"field {name!r}: {keyword} must be {words}")
    if kind == "array" and "items" not in members:
        raise _bad(f"field {name!r}: a list must have its choices in items.enum or items.anyOf")


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_string, cast("list[object]", value)))


def _are_titled(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict)
        and cast("JSONObject", item).keys() == {"const", "title"}
        and all(map(_is_string, cast("JSONObject", item).values()))
        for item in cast("list[object]", value)
    )


def _are_choices(value: object) -> bool:
    items = as_object(value)
    if items.keys() == {"type", "enum"}:
        return items["type"] == "string" and _are_strings(items["enum"])
    return items.keys() == {"anyOf"} and _are_titled(items["anyOf"])


_Rule: TypeAlias = tuple[Callable[[object], bool], str]
_Rules: TypeAlias = Mapping[str, _Rule]

_STRING: Final[_Rule] = (_is_string, "a string")
_BOOLEAN: Final[_Rule] = (lambda value: isinstance(value, bool), "true or false")
_INTEGER: Final[_Rule] = (lambda value: _is_number(value) and isinstance(value, int), "an integer")
_NUMBER: Final[_Rule] = (_is_number, "a number")
_WHOLE: Final[_Rule] = (lambda value: _is_number(value) and value == cast("float", value) // 1, "a whole number")
_STRINGS: Final[_Rule] = (_are_strings, "a list of strings")
_TITLED: Final[_Rule] = (_are_titled, "a list of objects with const and title, both strings")
_FORMAT: Final[_Rule] = (lambda value: value in ("email", "uri", "date", "date-time"), "email, uri, date or date-time")
_CHOICES: Final[_Rule] = (_are_choices, 'choices, {"type": "string", "enum": [...]} or {"anyOf": [...]}')

_FORM_KEYWORDS: Final = frozenset(
    ("$schema", "type", "properties", "required", "title", "description", "additionalProperties")
)
_ANY_FIELD: Final = {"type": _STRING, "title": _STRING, "description": _STRING}
_TEXT: Final = _ANY_FIELD | {"minLength": _INTEGER, "maxLength": _INTEGER, "format": _FORMAT, "default": _STRING}
_CHOICE: Final = _ANY_FIELD | {"enum": _STRINGS, "enumNames": _STRINGS, "default": _STRING}
_TITLED_CHOICE: Final = _ANY_FIELD | {"oneOf": _TITLED, "default": _STRING}
_FIELDS: Final[Mapping[str, _Rules]] = {
    "number": _ANY_FIELD | {"minimum": _NUMBER, "maximum": _NUMBER, "default": _NUMBER},
    "integer": _ANY_FIELD | {"minimum": _NUMBER, "maximum": _NUMBER, "default": _WHOLE},
    "boolean": _ANY_FIELD | {"default": _BOOLEAN},
    "array": _ANY_FIELD | {"minItems": _INTEGER, "maxItems": _INTEGER, "items": _CHOICES, "default": _STRINGS},
}


def first_form(schema: JSONObject) -> JSONObject:
    """Convert the form ``schema`` to the format of MCP 2025-06-18, the first revision with forms.

    There, the titles of choices are in ``enumNames``, and only booleans have defaults.

    Raises `ValueError` if a field is a list of choices, which 2025-06-18 can't express.
    """
    check_form_schema(schema)
    fields = {name: _first_field(name, field) for name, field in schema["properties"].items()}
    return {**schema, "properties": fields}


def _first_field(name: str, field: JSONObject) -> JSONObject:
    if field["type"] == "array":
        raise ValueError(
            f"field {name!r} is a list of choices, which requires MCP revision {ElicitURLParams._SINCE} or later"
        )
    first = {key: value for key, value in field.items() if key != "default" or field["type"] == "boolean"}
    if choices := first.pop("oneOf", None):
        first |= {"enum": [one["const"] for one in choices], "enumNames": [one["title"] for one in choices]}
    return first


def check_url(url: object) -> None:
    """Raise `CodedError` (-32602) if ``url`` isn't an absolute http or https URL with a host.

    Invisible characters (control characters, marks that reverse the direction of text) are refused, and so is a
    backslash, which browsers read as a slash. The user must see the host that is visited.
    """
    try:
        # Reject a URL with a long host name first, because `urlsplit` takes quadratic time for it.
        parts = urlsplit(url) if isinstance(url, str) and _BEGINNING.match(url) else None
        good = parts is not None and parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not cast("str", url).isprintable() or {" ", "\\"} & set(cast("str", url)):
        raise _bad("the URL to visit must be an absolute http or https URL, without spaces or control characters")


def check_url_question(question: ElicitURLParams) -> None:
    """Raise `CodedError` (-32602) if the parameters of a URL elicitation request are invalid.

    The URL must pass `check_url`. The id, if there is one, must not be empty. Neither the id nor the message may
    contain control characters, except for line breaks and tabs of a message.
    """
    check_url(question.url)
    name, message = question.elicitation_id, question.message
    if name is not None and not (_is_string(name) and name.strip() and name.isprintable()):
        raise _bad("the id of a URL elicitation must not be empty or contain control characters")
    if not _is_string(message) or any(category(sign) == "Cc" and sign not in "\n\r\t" for sign in message):
        raise _bad("the message of a URL elicitation must not contain control characters")


def _bad(reason: str) -> CodedError:
    return CodedError(INVALID_PARAMS, f"Invalid params: {reason}")


def content_fits(content: dict[str, Any]) -> bool:
    """Return true if the values in ``content`` are allowed in an elicitation result."""
    return all(
        isinstance(value, str | bool | int | float)
        or (isinstance(value, list) and all(isinstance(item, str) for item in cast("list[object]", value)))
        for value in content.values()
    )
