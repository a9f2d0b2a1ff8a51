"""form_fields: the fields of an elicitation form, their questions, and the meaning of an answer."""

from __future__ import annotations

from typing import Any, Final, cast

import attrs

from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...protocol.fields import JSONObject
from ...protocol.schema_validator import SchemaValidator
from ...protocol.types.elicitation import check_form_size
from .printable import name_shown, on_one_line

# This draft's validator checks formats, too.
_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
_CHECKED: Final = ("type", "minLength", "maxLength", "format", "minimum", "maximum", "minItems", "maxItems")
_TYPES: Final = ("string", "number", "integer", "boolean", "array")
_YES: Final = ("y", "yes", "true")
_NO: Final = ("n", "no", "false")


@attrs.frozen(kw_only=True)
class FormField:
    """A field. ``choices`` are values and their titles; empty when any value of ``kind`` is allowed."""

    name: str
    kind: str
    title: str
    required: bool
    default: Any
    choices: tuple[tuple[str, str], ...]
    rules: SchemaValidator

    def question(self, default: Any) -> str:
        """Return the text to show before the answer; ``default`` is what an empty answer stands for."""
        hint = {"boolean": " (y/n)", "array": " (numbers, with commas)"}.get(self.kind, "")
        if default is not None:
            return f"{self.title}{hint} [{_shown(default)}]"
        return f"{self.title}{hint}{'' if self.required else ' (may be left empty)'}"

    def value(self, typed: str) -> Any:
        """Return the value of the answer. Raises `ValueError`, which says what is wrong with the answer."""
        value = self._converted(typed)
        faults = self.rules.faults(value)
        if faults is not None:
            raise ValueError(on_one_line(faults))
        return value

    def _converted(self, typed: str) -> Any:
        match self.kind:
            case "array":
                return [self._choice(part.strip()) for part in typed.split(",") if part.strip()]
            case "boolean":
                if typed.lower() not in _YES + _NO:
                    raise ValueError("y or n, please")
                return typed.lower() in _YES
            case "integer":
                return _number(int, typed, "a whole number")
            case "number":
                return _number(float, typed, "a number")
            case _:
                return self._choice(typed) if self.choices else typed

    def _choice(self, typed: str) -> str:
        for value, title in self.choices:
            if typed in (value, title):
                return value
        if typed.isdecimal() and 0 < int(typed) <= len(self.choices):
            return self.choices[int(typed) - 1][0]
        raise ValueError(f"{typed!r} is none of the choices; their numbers are 1 to {len(self.choices)}")


def form_fields(schema: JSONObject) -> list[FormField]:
    """Return the fields of a form, in its order. Raises `CodedError` (-32602) for a form that cannot be asked.

    Unknown keywords are ignored, because the server checks the values, too.
    """
    check_form_size(schema)
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        raise _bad("a form must have properties")
    needed = {name for name in _list(schema.get("required")) if isinstance(name, str)}
    return [_field(name, field, name in needed) for name, field in cast("JSONObject", properties).items()]


def _field(name: str, schema: Any, required: bool) -> FormField:
    members = _object(schema)
    kind = members.get("type")
    if kind not in _TYPES:
        raise _bad(f"field {name_shown(name)!r} has a type that forms do not allow")
    choices = _choices(members if kind == "string" else _object(members.get("items")))
    if kind == "array" and not choices:
        raise _bad(f"field {name_shown(name)!r} is a list without choices")
    title = next((text for key in ("description", "title") if isinstance(text := members.get(key), str) and text), name)
    try:
        rules = SchemaValidator({"$schema": _DIALECT} | {key: members[key] for key in _CHECKED if key in members})
    except ValueError as error:
        raise _bad(f"field {name_shown(name)!r}: {error}") from None
    default = members.get("default")
    if rules.faults(default) is not None or not _is_chosen(default, choices):
        default = None  # the user could not send it
    return FormField(
        name=name,
        kind=kind,
        title=on_one_line(title),
        required=required,
        default=default,
        choices=choices,
        rules=rules,
    )


def _is_chosen(default: Any, choices: tuple[tuple[str, str], ...]) -> bool:
    values = {value for value, _ in choices}
    return not choices or all(isinstance(one, str) and one in values for one in (_list(default) or [default]))


def _choices(members: JSONObject) -> tuple[tuple[str, str], ...]:
    values, names = _list(members.get("enum")), _list(members.get("enumNames"))
    if values:
        pairs = zip(values, [*names, *values[len(names) :]], strict=False)
    else:
        titled = [_object(one) for one in _list(members.get("oneOf") or members.get("anyOf"))]
        pairs = [(one.get("const"), one.get("title", one.get("const"))) for one in titled]
    return tuple((value, str(title)) for value, title in pairs if isinstance(value, str))


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _object(value: Any) -> JSONObject:
    return cast("JSONObject", value) if isinstance(value, dict) else {}


def _number(kind: type[int] | type[float], typed: str, words: str) -> int | float:
    try:
        number = kind(typed)
    except ValueError:
        raise ValueError(f"{words}, please") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(f"{words}, please")
    return number


def _shown(value: Any) -> str:
    match value:
        case bool():
            return "y" if value else "n"
        case list():
            return ", ".join(map(str, cast("list[Any]", value)))
        case _:
            return str(value)


def _bad(reason: str) -> CodedError:
    return CodedError(INVALID_PARAMS, f"Invalid params: {reason}")
