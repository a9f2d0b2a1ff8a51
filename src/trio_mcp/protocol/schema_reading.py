"""Converts values of the wrong JSON type to the type that a JSON Schema requires, and adds the allowed values to error
messages.

The arguments of prompts are strings on the wire. Some hosts and models send strings for lists, objects and numbers,
null for what they omit, or 3.0 for 3. This happens only after a strict reading has failed, so only invalid parts are
changed. Peers may be hostile: steps, levels of nesting and JSON inside strings are limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from operator import is_
from typing import Any, Final, cast

import msgspec

from ..jsonrpc.sizes import MOST_LEVELS, is_too_deep
from .fields import JSON_TYPES, JSONObject, as_object, json_type
from .schema_growth import targets_of

_MOST_TEXT: Final = 256 * 1024
"""Maximum number of characters of all JSON inside strings, in the arguments of one call."""
_MOST_STEPS: Final = 100_000
"""Maximum number of pairs of a value and a schema that are compared to read strings. For numbers alone, the maximum is
five times as high."""
_MOST_NESTED: Final = 64
"""Maximum number of levels of nesting, including those inside strings. Each level uses a few stack frames."""

_WORDS: Final = {"": None, "null": None, "none": None, "true": True, "false": False}
_LIMITS: Final = frozenset(("const", "enum", "format", "minLength", "pattern"))
"""JSON Schema keywords for strings that may reject an empty string."""
_EITHER: Final = ("anyOf", "oneOf")


def read_leniently(schema: JSONObject, arguments: JSONObject) -> JSONObject:
    """Return tool ``arguments`` after converting strings to JSON values where ``schema`` requires another type.

    - A string becomes a number, boolean, null, list or object if the schema doesn't allow strings.
    - An optional member that is null or blank is removed if the schema doesn't allow that.
    - A float without a fraction becomes an integer if the schema allows no other numbers.

    Nothing is changed in place, and unreadable parts stay unchanged. Raises `ValueError` if there is too much to read.
    """
    return _SchemaReader(schema, _MOST_STEPS, reads_text=True).read(schema, arguments, _MOST_NESTED)


def read_whole_numbers(schema: JSONObject, data: Any) -> Any:
    """Return ``data`` with floats such as 3.0 converted to `int`, wherever ``schema`` allows integers but no other
    numbers.

    The original isn't changed. If there is nothing to convert, or the data is too large, the same object is returned.
    """
    with suppress(ValueError):
        return _SchemaReader(schema, 5 * _MOST_STEPS).read(schema, data, MOST_LEVELS)
    return data


class _SchemaReader:
    def __init__(self, schema: JSONObject, steps: int, *, reads_text: bool = False) -> None:
        self._schema = schema
        self._steps, self._text = steps, _MOST_TEXT
        self._reads_text = reads_text
        self._types: dict[int, frozenset[str]] = {}
        self._known: dict[tuple[int, str], list[JSONObject]] = {}
        """For each pair of a schema and a type, the schemas that together describe any value of the type."""

    def read(self, node: Any, value: Any, levels: int) -> Any:
        """Return ``value`` converted to the JSON types that the schema ``node`` requires.

        If nothing changes, return the same object.
        """
        self._step(1)
        if self._reads_text and isinstance(value, str):
            types = self._types_of(node)
            if not all(_may_be(part, value) for part in self._parts(node, value)):
                types -= {"string"}
            value = self._value_of_text(value, types)
        if type(value) is float:
            return _whole(value, self._types_of(node))
        for part in self._parts(node, value) if levels and isinstance(value, dict | list) else ():
            if isinstance(value, list):
                items = cast("list[Any]", value)
                read = [self.read(_below(part, index), item, levels - 1) for index, item in enumerate(items)]
                value = items if all(map(is_, read, items)) else read
            else:
                value = self._members(part, cast("JSONObject", value), levels - 1)
        return cast("Any", value)

    def _members(self, schema: JSONObject, members: JSONObject, levels: int) -> JSONObject:
        properties, required, read = _properties(schema), _listed(schema, "required"), JSONObject()
        for name, item in members.items():
            below = _below(schema, name)
            if name in required or name not in properties or not self._is_left_out(below, item):
                read[name] = self.read(below, item, levels)
        return members if len(read) == len(members) and all(map(is_, read.values(), members.values())) else read

    def _is_left_out(self, node: Any, value: Any) -> bool:
        if not self._reads_text:
            return False
        types = self._types_of(node)
        word = value.strip().lower() if isinstance(value, str) else value
        if value is None or (word in ("null", "none") and "string" not in types):
            return "null" not in types
        limits = "string" not in types or any(not _LIMITS.isdisjoint(part) for part in self._parts(node, value))
        return word == "" and limits

    def _value_of_text(self, text: str, types: frozenset[str]) -> Any:
        """Return the JSON value in the string ``text``, if ``types`` allows the type of this value but not strings.

        Otherwise return the string.
        """
        said, before = cast("Any", text), None
        while isinstance(said, str) and said is not before and "string" not in types:
            # Decode repeatedly, because a JSON text may be a string that contains another JSON text.
            said, before = _whole(self._decoded(said), types), said
        return said if json_type(said) in types else text

    def _decoded(self, text: str) -> Any:
        if (word := text.strip().lower()) in _WORDS:
            return _WORDS[word]
        self._text -= len(text)
        if self._text < 0:
            raise ValueError(
                f"the arguments are too large: JSON inside of strings has more than {_MOST_TEXT:,} characters"
            )
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return text
        return text if is_too_deep(value) else value

    def _step(self, count: int) -> None:
        self._steps -= count
        if self._steps < 0:
            raise ValueError(
                "the arguments are too large, because numbers, booleans, lists or objects were sent as strings: "
                "send them as JSON types"
            )

    def _parts(self, node: Any, value: Any) -> list[JSONObject]:
        """Return the subschemas of ``node`` that all apply to ``value``.

        Of several alternatives, use the first that matches the form of the value.
        """
        key = id(node), json_type(value)
        if (parts := self._known.get(key)) is not None:
            return parts
        parts, ahead, is_certain = list[JSONObject](), [node], True
        for schema in ahead:  # grows
            if isinstance(schema, dict) and all(schema is not part for part in parts):
                parts.append(cast("JSONObject", schema))
                ahead += _beside(self._schema, schema)
                for keyword in _EITHER:
                    fitting = [one for one in _listed(schema, keyword) if json_type(value) in self._types_of(one)]
                    if len(fitting) > 1:
                        is_certain = False
                        meant = (one for one in fitting if self._seems_meant(one, value))
                        fitting = [*islice(meant, 1)] or fitting[: self._reads_text]
                    ahead += fitting
        if is_certain:
            self._known[key] = parts
        return parts

    def _seems_meant(self, node: Any, value: Any) -> bool:
        for schema in (node, *_beside(self._schema, node)):
            inner, given = cast("dict[Any, Any]", _properties(schema)), cast("JSONObject", value)
            if isinstance(value, list):
                inner, given = dict(enumerate(_listed(schema, "prefixItems"))), range(len(cast("list[Any]", value)))
            inner = inner if isinstance(value, dict | list) else {}
            self._step(1 + len(inner))
            fits = all(_may_be(said, value[name]) for name, said in inner.items() if name in given)
            has_all = not inner or all(name in given for name in _listed(schema, "required"))
            if not (fits and has_all and _may_be(schema, value)):
                return False
        return True

    def _types_of(self, node: Any) -> frozenset[str]:
        """Return the names of the JSON types that values of the schema ``node`` can have."""
        if (types := self._types.get(id(node))) is None:
            # During the search, assume all types, so that a schema that refers to itself isn't searched endlessly.
            self._types[id(node)] = JSON_TYPES
            types = frozenset(_listed(node, "type") or JSON_TYPES)
            types |= {"integer"} if "number" in types else types
            if choices := _choices(node):
                types &= set(map(json_type, choices))
            for ones in (*(_listed(node, each) for each in _EITHER), *([one] for one in _beside(self._schema, node))):
                types &= set[str]().union(*map(self._types_of, ones)) if ones else types
            self._types[id(node)] = types
        return types


_PLACE: Final = re.compile(r"^(?:Invalid enum|Invalid value|Expected).* at (`key` in )?`\$([^`]*)`$", re.DOTALL)
"""Pattern of a msgspec error about one value, with the JSON path of that value."""
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
"""Pattern of one step of a JSON path: a member's name or an item's index. Three dots stand for any member, or for an
item of a set."""
_MOST: Final = 200
"""Maximum number of schemas that are searched, and of choices that are listed."""
_LONGEST: Final = 1000


def with_choices(fault: str, schema: JSONObject) -> str:
    """Return the text ``fault`` of a msgspec error. If ``schema`` has an ``enum`` for the invalid value, append the
    allowed values."""
    if (found := _PLACE.match(fault)) is None:
        return fault
    any_part = ("additionalProperties", "items")
    steps = [int(index) if index.isdigit() else name or any_part for name, index in _STEP.findall(found[2])]
    return fault + allowed_values(schema, schema, [*steps, *([("propertyNames",)] if found[1] else [])])


def allowed_values(root: JSONObject, schema: JSONObject, place: Iterable[str | int | tuple[str, ...]]) -> str:
    """Return text like ": must be one of …" with the values that ``schema``, a part of ``root``, allows at ``place``.

    Return "" if any value is allowed. Each step of ``place`` is a name, an index, or the keywords that lead to
    subschemas.
    """
    nodes = _with_alternatives(root, [schema])
    for step in place:
        steps = step if isinstance(step, tuple) else ()
        below = [node.get(keyword) for node in nodes for keyword in steps] or [_below(node, step) for node in nodes]
        nodes = _with_alternatives(root, below)
    choices = [each for node in nodes for each in _choices(node)]
    if not choices:
        return ""
    others = dict.fromkeys(str(node["type"]) for node in nodes if "type" in node and "enum" not in node)
    words = ", ".join(msgspec.json.encode(choice).decode() for choice in choices[:_MOST])
    words = words if len(words) <= _LONGEST and len(choices) <= _MOST else f"{words[:_LONGEST]}, …"
    return f": must be one of {words}" + "".join(f", or {other}" for other in others)


def _with_alternatives(root: JSONObject, schemas: list[Any]) -> list[JSONObject]:
    """Return ``schemas``, and all schemas that they include by ``$ref`` and ``allOf`` or list as alternatives."""
    found = schemas.copy()
    for node in found:  # grows
        if len(found) < _MOST:
            found += [*_beside(root, node), *(one for keyword in _EITHER for one in _listed(node, keyword))]
    return [cast("JSONObject", each) for each in found if isinstance(each, dict)]


# The functions below find the subschemas for a value, its items, and its members


def _beside(root: JSONObject, schema: Any) -> list[Any]:
    """Return the schemas that ``schema`` includes by its keywords ``$ref`` and ``allOf``."""
    targets = [target for reference in _listed(schema, "$ref") for target in targets_of(root, reference, {})]
    return targets + _listed(schema, "allOf")


def _below(schema: JSONObject, step: Any) -> Any:
    """Return the subschema of ``schema`` for one item of a list, or for one member of an object.

    ``step`` is the item's index or the member's name.
    """
    if isinstance(step, int):
        first = _listed(schema, "prefixItems")
        return first[step] if step < len(first) else schema.get("items")
    return _properties(schema).get(step, schema.get("additionalProperties"))


def _listed(schema: Any, keyword: str) -> list[Any]:
    said: Any = as_object(schema).get(keyword, [])
    return cast("list[Any]", said) if isinstance(said, list) else [said]


def _properties(schema: Any) -> JSONObject:
    return as_object(schema).get("properties", {})


def _choices(schema: Any) -> list[Any]:
    return [schema["const"]] if isinstance(schema, dict) and "const" in schema else _listed(schema, "enum")


def _may_be(schema: Any, value: Any) -> bool:
    return not (choices := _choices(schema)) or value in choices


def _whole(value: Any, types: frozenset[str]) -> Any:
    is_whole = type(value) is float and value.is_integer() and "integer" in types and "number" not in types
    return int(value) if is_whole else value
