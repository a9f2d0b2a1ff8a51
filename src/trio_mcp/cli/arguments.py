"""Converts command-line arguments like ``key=value`` to the types that a tool's input schema requires.

`SchemaReader` describes a peer's schemas in a few words. Reading always terminates, even if references are circular.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, NoReturn, cast

from ..protocol.fields import JSON_TYPES, JSONObject, as_object, json_type
from ..protocol.inlining import at_pointer
from .printable import CommandError, name_shown, on_one_line

_LONGEST_NAME: Final = 60
_NAMES_TOLD: Final = 20


class WrongArgument(CommandError):
    """A command-line argument for a tool or prompt is malformed or has the wrong type. The error's message is one line,
    and names the argument."""


def arguments_typed(pairs: Sequence[str], schema: JSONObject, given: JSONObject | None = None) -> JSONObject:
    """Return the arguments for a tool: the arguments in ``given``, and the arguments in ``pairs``, which are strings
    like ``key=value``.

    The values in ``pairs`` are converted to the types in the tool's input schema.

    If the schema requires a string, the value is used as typed. Integers, numbers, booleans, null, arrays and objects
    must be JSON. If the schema allows a string among other types, or specifies no type, the value is parsed as JSON if
    possible, and is a string otherwise. Raises `WrongArgument`. The server reports missing and out-of-range arguments.
    """
    fields = as_object(schema.get("properties"))
    typed: JSONObject = {}
    reader = SchemaReader()
    for name, text in texts_typed(pairs).items():
        if name not in fields and schema.get("additionalProperties") is False:
            raise no_such_argument("tool", name, fields)
        typed[name] = _value(name, text, fields.get(name, {}), schema, reader)
    return {**(given or {}), **typed}


def texts_typed(pairs: Sequence[str]) -> dict[str, str]:
    """Return the arguments in ``pairs``, which are strings like ``key=value``, with unconverted values. Raises
    `WrongArgument` if a pair is malformed."""
    texts: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (equals and name):
            hint = ": write all arguments with --args" if pair.startswith("{") else ""
            raise WrongArgument(f"an argument must be like NAME=VALUE, not {pair!r}{hint}")
        if name in texts:
            raise WrongArgument(f"argument {name!r} occurs twice")
        texts[name] = text
    return texts


def no_such_argument(kind: str, name: str, known: Iterable[str]) -> WrongArgument:
    """Return the error for an unknown argument of a tool or prompt. Its message lists some of the ``known``
    arguments."""
    told = ", ".join(name_shown(one, _LONGEST_NAME) for one in islice(known, _NAMES_TOLD))
    return WrongArgument(f"the {kind} has no argument {name!r}; it has {on_one_line(told) or 'none'}")


def object_typed(text: str) -> JSONObject:
    """Return the tool arguments in ``text``, a JSON object. If ``text`` is invalid, raises `WrongArgument` with the
    position of the error."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise WrongArgument(f"--args is not valid JSON: {error}") from None
    except RecursionError:
        raise WrongArgument("--args is nested too deeply") from None
    except ValueError as error:
        raise WrongArgument(f"--args: {error}") from None
    if not isinstance(value, dict):
        raise WrongArgument("--args must be a JSON object, like '{\"files\": 3}'")
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
    # Escape the text, because it comes from the server's schema.
    wanted = name_shown(_words(names, reader.words(schema, root)))
    raise WrongArgument(f"argument {name!r} must be {wanted}, not {text!r}")


def _as(kind: str, value: Any) -> tuple[bool, Any]:
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return True, int(value)  # in JSON Schema, 5.0 is an integer
    own = json_type(value)
    return own == kind or (own, kind) == ("integer", "number"), value


def _words(names: set[str], words: str) -> str:
    examples = {"boolean": "true or false", "array": "a JSON array", "object": "a JSON object", "null": "null"}
    if len(names) > 1 or " | " in words:
        return f"one of {words}"
    (name,) = names
    if name not in JSON_TYPES:  # the server's schema may contain any type name
        return f"of the type {name!r}, which JSON Schema does not have"
    return examples.get(name) or f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


ENOUGH_STEPS: Final = 500_000
"""Number of steps for reading schemas: enough for the schemas of about ten thousand tools, which takes about a
second."""
_LENGTH_A_STEP: Final = 32
"""Reading this number of characters of a reference costs one step."""
_CHOICES_TOLD: Final = 6
_LONGEST_CHOICE: Final = 60
"""Maximum number of characters that are shown of a choice, or of a type's name."""
_KEYWORDS: Final = ("anyOf", "oneOf", "allOf")


class SchemaReader:
    """Describes the values that a JSON schema allows, for error messages.

    All schemas of a reader share its ``steps``. Each schema, choice, type and reference costs one step, and long
    references cost more. When no steps are left, every schema has no types, and its description is ``…``.
    """

    def __init__(self, steps: int = ENOUGH_STEPS) -> None:
        self._left = steps

    @property
    def exhausted(self) -> bool:
        """True if reading a schema has taken more steps than this `SchemaReader` allows. The limit prevents endless
        work for large schemas."""
        return self._left < 0

    def resolved(self, schema: Any, root: JSONObject) -> JSONObject:
        """Return ``schema`` itself, or the schema in ``root`` that it refers to with ``$ref``.

        Returns ``{}`` if the result isn't a schema, can't be found, or is a circular reference.
        """
        seen: set[str] = set()
        while self._spend_steps(1) and isinstance(schema, dict):
            members = cast("JSONObject", schema)
            reference = members.get("$ref")
            if not isinstance(reference, str):
                return members
            if not self._spend_steps(len(reference) // _LENGTH_A_STEP) or reference in seen:
                break
            seen.add(reference)
            schema = at_pointer(root, reference) if reference.startswith("#") else None
        return {}

    def type_names(self, schema: Any, root: JSONObject) -> set[str]:
        """Return the names of the JSON types that ``schema`` allows, directly or in its alternatives and references.
        Returns no names if ``schema`` doesn't specify a type."""
        names: set[str] = set()
        waiting: list[Any] = [schema]
        seen: set[int] = set()
        while waiting:
            # Don't read a schema twice: wherever the schema occurs, it allows the same types.
            members = self.resolved(waiting.pop(), root)
            if id(members) not in seen:
                seen.add(id(members))
                own = self._own_names(members)
                names |= own or set()
                waiting += self._branches(members) if own is None else []
            if self.exhausted:
                return set()
        return names

    def words(self, schema: Any, root: JSONObject) -> str:
        """Describe in a few words which values ``schema`` allows, for example ``integer``, ``a | b`` or ``array of
        string``."""
        members = self.resolved(schema, root)
        choices = members.get("enum")
        if isinstance(choices, list):
            told = [_choice(choice) for choice in cast("list[Any]", choices)[: _CHOICES_TOLD + 1]]
            return " | ".join([*told[:_CHOICES_TOLD], *(["…"] if len(told) > _CHOICES_TOLD else [])])
        names = sorted(self.type_names(members, root))
        items = self.type_names(members.get("items"), root) if names == ["array"] else None
        if self.exhausted:
            return "…"
        return f"array of {' | '.join(sorted(items))}" if items else " | ".join(names) or "any"

    def _spend_steps(self, steps: int) -> bool:
        """Subtract ``steps`` from the steps that are left for reading a schema. Return false if no steps are left."""
        self._left -= steps
        return not self.exhausted

    def _own_names(self, members: JSONObject) -> set[str] | None:
        """Return the JSON types that the schema itself specifies. Returns `None` if only its alternatives, such as
        those in ``anyOf``, specify types."""
        kind = members.get("type")
        if isinstance(kind, str):
            return {kind[:_LONGEST_CHOICE]}
        if isinstance(kind, list):
            names = cast("list[Any]", kind)
            return (
                {name[:_LONGEST_CHOICE] for name in names if isinstance(name, str)}
                if self._spend_steps(len(names))
                else set()
            )
        if "const" in members:
            return {json_type(members["const"])}
        choices = members.get("enum")
        if isinstance(choices, list):
            values = cast("list[Any]", choices)
            return {json_type(value) for value in values} if self._spend_steps(len(values)) else set()
        return None

    def _branches(self, members: JSONObject) -> list[Any]:
        branches: list[Any] = []
        for keyword in _KEYWORDS:
            more = members.get(keyword)
            if isinstance(more, list) and self._spend_steps(len(cast("list[Any]", more))):
                branches += cast("list[Any]", more)
        return branches


def _choice(value: Any) -> str:
    """Return a value of an enum as a user would type it, truncated if it is long."""
    match value:
        case str():
            return value[:_LONGEST_CHOICE]
        case list():
            return "[…]"
        case dict():
            return "{…}"
        case _:
            return json.dumps(value)[:_LONGEST_CHOICE]
