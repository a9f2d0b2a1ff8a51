"""Conversion of ``key=value`` arguments, as typed, to the types that the tool's schema requires."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, NoReturn, cast

from ...protocol.fields import JSONObject
from ..terminal.printable import name_shown, on_one_line
from ..terminal.schema_words import SchemaReader

_LONGEST_NAME: Final = 60
_NAMES_TOLD: Final = 20


class WrongArgument(ValueError):
    """The text is no argument, or does not fit. The message is one line for the user, and names the argument."""


def arguments_typed(pairs: Sequence[str], schema: JSONObject, given: JSONObject | None = None) -> JSONObject:
    """Return the arguments that ``pairs`` of ``key=value`` mean for a tool with this input schema, on top of ``given``.

    For a string in the schema, the value is the text as typed. Integers, numbers, booleans, null, arrays and objects
    are written as JSON. If the schema allows a string among other types, or gives no type, the value is read as JSON,
    if allowed, and is a string otherwise. Raises `WrongArgument`. Missing and out-of-range arguments are left for the
    server to report.
    """
    properties = schema.get("properties")
    fields = cast("JSONObject", properties) if isinstance(properties, dict) else {}
    typed: JSONObject = {}
    reader = SchemaReader()
    for name, text in texts_typed(pairs).items():
        if name not in fields and schema.get("additionalProperties") is False:
            raise no_such_argument("tool", name, fields)
        typed[name] = _value(name, text, fields.get(name, {}), schema, reader)
    return {**(given or {}), **typed}


def texts_typed(pairs: Sequence[str]) -> dict[str, str]:
    """Return the values of ``pairs`` of ``key=value``, as typed. Raises `WrongArgument`."""
    texts: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (equals and name):
            raise WrongArgument(f"an argument is like NAME=VALUE, not {pair!r}")
        if name in texts:
            raise WrongArgument(f"argument {name!r} is given twice")
        texts[name] = text
    return texts


def no_such_argument(kind: str, name: str, known: Iterable[str]) -> WrongArgument:
    """Return the error for an argument unknown to a server's tool or prompt; the error names some ``known`` ones."""
    told = ", ".join(name_shown(one, _LONGEST_NAME) for one in islice(known, _NAMES_TOLD))
    return WrongArgument(f"the {kind} has no argument {name!r}; it has {on_one_line(told) or 'none'}")


def object_typed(text: str) -> JSONObject:
    """Return the arguments given as one JSON object. Raises `WrongArgument`, which says where the text stops being
    JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise WrongArgument(f"--json is no JSON: {error}") from None
    except RecursionError:
        raise WrongArgument("--json is nested too deep") from None
    except ValueError as error:
        raise WrongArgument(f"--json: {error}") from None
    if not isinstance(value, dict):
        raise WrongArgument("--json wants an object, like '{\"files\": 3}'")
    return cast("JSONObject", value)


def _value(name: str, text: str, schema: Any, root: JSONObject, reader: SchemaReader) -> Any:
    names = reader.type_names(schema, root)
    if names == {"string"}:
        return text
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        value = text
    if not names:
        return value
    for kind in sorted(names - {"string"}):
        fits, converted = _as(kind, value)
        if fits:
            return converted
    if "string" in names:
        return text
    wanted = name_shown(_words(names, reader.words(schema, root)))  # the words of the schema are the server's
    raise WrongArgument(f"argument {name!r} must be {wanted}, not {text!r}")


def _as(kind: str, value: Any) -> tuple[bool, Any]:
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return True, int(value)  # JSON Schema: 5.0 is an integer
    if isinstance(value, bool):
        return kind == "boolean", value
    return isinstance(value, _TYPES.get(kind, ())), value


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def _words(names: set[str], words: str) -> str:
    examples = {"boolean": "true or false", "array": "a JSON array", "object": "a JSON object", "null": "null"}
    if len(names) > 1 or " | " in words:
        return f"one of {words}"
    (name,) = names
    return examples.get(name) or f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
