"""Lenient reading: arguments that are all text, or of the wrong JSON type, become what their JSON Schema asks for.

The arguments of prompts are text on the wire, and some hosts and models send text for lists, objects and numbers, or
null for what they leave out. This reader is used where strict reading failed, so it may change only what is wrong.
Clients may be hostile: steps, levels of nesting and JSON inside of text are bounded.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from ..jsonrpc.sizes import is_too_deep
from ..protocol.fields import JSON_TYPES, JSONObject, json_type
from ..protocol.schema_growth import targets_of

_MOST_TEXT: Final = 256 * 1024
"""Characters of all JSON texts inside of the arguments of one call."""
_MOST_STEPS: Final = 100_000
"""Pairs of a value and a schema that are compared."""
_MOST_NESTED: Final = 64
"""Levels of nesting, those inside of texts included. Each takes a few frames of the stack."""

_WORDS: Final = {"": None, "null": None, "none": None, "true": True, "false": False}
_LIMITS: Final = frozenset(("const", "enum", "format", "minLength", "pattern"))
"""Keywords of a text that may refuse the empty text."""


def read_leniently(schema: JSONObject, arguments: JSONObject) -> JSONObject:
    """Return ``arguments`` with JSON types as in ``schema``, as far as their texts are JSON of these types.

    - Text becomes a number, boolean, null, list or object where the schema takes no text.
    - An optional member that is null or blank is left out where the schema takes neither.

    Nothing is changed in place, and what can't be read stays as it is. Raises `ValueError` if too much is to be read.
    """
    return _Reader(schema).read(schema, arguments, _MOST_NESTED)


class _Reader:
    def __init__(self, schema: JSONObject) -> None:
        self._schema = schema
        self._steps, self._text = _MOST_STEPS, _MOST_TEXT
        self._types: dict[int, frozenset[str]] = {}

    def read(self, node: Any, value: Any, levels: int) -> Any:
        """Return ``value`` as the schema ``node`` takes it."""
        self._step(1)
        types = self._types_of(node)
        if isinstance(value, str) and not all(_may_be(part, value) for part in self._parts(node, value)):
            types -= {"string"}
        value = self._as_type(types, value)
        for part in self._parts(node, value) if levels and isinstance(value, dict | list) else ():
            value = self._inside(part, value, levels - 1)
        return cast("Any", value)

    def _step(self, count: int) -> None:
        self._steps -= count
        if self._steps < 0:
            raise ValueError("too large to be read as text: write numbers, booleans, lists and objects as JSON types")

    def _parts(self, node: Any, value: Any) -> list[JSONObject]:
        """Return the schemas that together describe ``value``; of alternatives the first that seems to be meant."""
        parts: list[JSONObject] = []
        ahead = [node]
        for schema in ahead:  # grows
            if isinstance(schema, dict) and all(schema is not part for part in parts):
                parts.append(cast("JSONObject", schema))
                ahead += self._beside(schema)
                for keyword in ("anyOf", "oneOf"):
                    fitting = [one for one in _listed(schema, keyword) if json_type(value) in self._types_of(one)]
                    ahead += [one for one in fitting if self._seems_meant(one, value)][:1] or fitting[:1]
        return parts

    def _beside(self, schema: Any) -> list[Any]:
        """Return the schemas that a value of ``schema`` meets as well."""
        references = _listed(schema, "$ref")
        targets = [target for reference in references for target in targets_of(self._schema, reference, {})]
        return targets + _listed(schema, "allOf")

    def _seems_meant(self, node: Any, value: Any) -> bool:
        for schema in (node, *self._beside(node)):
            members = _properties(schema) if isinstance(value, dict) else {}
            self._step(1 + len(members))
            fits = all(_may_be(said, value[name]) for name, said in members.items() if name in value)
            has_all = not members or all(name in value for name in _listed(schema, "required"))
            if not (fits and has_all and _may_be(schema, value)):
                return False
        return True

    def _types_of(self, node: Any) -> frozenset[str]:
        """Return the names of the JSON types that a schema takes."""
        if (types := self._types.get(id(node))) is None:
            self._types[id(node)] = JSON_TYPES  # for a schema that refers to itself
            types = frozenset(_listed(node, "type") or JSON_TYPES)
            types |= {"integer"} if "number" in types else types
            if choices := _choices(node):
                types &= set(map(json_type, choices))
            alternatives = [_listed(node, keyword) for keyword in ("anyOf", "oneOf")]
            for ones in (*filter(None, alternatives), *([one] for one in self._beside(node))):
                types &= set[str]().union(*map(self._types_of, ones))
            self._types[id(node)] = types
        return types

    def _as_type(self, types: frozenset[str], value: Any) -> Any:
        """Return the value that a text says, if it is of one of these ``types`` and the text isn't; otherwise
        ``value``."""
        text: Any = value
        while isinstance(text, str) and "string" not in types:
            found: Any = self._said_by(text)
            if type(found) is float and found.is_integer() and "number" not in types:
                found = int(found)
            if json_type(found) in types:
                return found
            text = None if found is text else found  # JSON text inside of JSON text
        return value

    def _said_by(self, text: str) -> Any:
        if (word := text.strip().lower()) in _WORDS:
            return _WORDS[word]
        self._text -= len(text)
        if self._text < 0:
            raise ValueError(f"too large: JSON in texts has at most {_MOST_TEXT:,} characters")
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return text
        return text if is_too_deep(value) else value

    def _inside(self, schema: JSONObject, value: Any, levels: int) -> Any:
        if isinstance(value, list):
            rest = schema.get("items")
            return [self.read(rest, item, levels) for item in cast("list[Any]", value)] if rest else cast("Any", value)
        properties, required = _properties(schema), _listed(schema, "required")
        read: JSONObject = {}
        for name, item in cast("JSONObject", value).items():
            below = properties.get(name, schema.get("additionalProperties"))
            if name not in properties or name in required or not self._is_left_out(below, item):
                read[name] = self.read(below, item, levels)
        return read

    def _is_left_out(self, node: Any, value: Any) -> bool:
        types = self._types_of(node)
        word = value.strip().lower() if isinstance(value, str) else value
        if value is None or (word in ("null", "none") and "string" not in types):
            return "null" not in types
        limits = "string" not in types or any(not _LIMITS.isdisjoint(part) for part in self._parts(node, value))
        return word == "" and limits


def _listed(schema: Any, keyword: str) -> list[Any]:
    said: Any = cast("JSONObject", schema).get(keyword, []) if isinstance(schema, dict) else []
    return cast("list[Any]", said) if isinstance(said, list) else [said]


def _properties(schema: Any) -> JSONObject:
    return cast("JSONObject", schema).get("properties", {}) if isinstance(schema, dict) else {}


def _choices(schema: Any) -> list[Any]:
    return [schema["const"]] if isinstance(schema, dict) and "const" in schema else _listed(schema, "enum")


def _may_be(schema: Any, value: Any) -> bool:
    return not (choices := _choices(schema)) or value in choices
