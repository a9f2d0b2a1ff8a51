"""Converts JSON Schemas to a portable form that models and hosts accept.

Many readers of schemas, including models, don't follow references, so references are replaced with their definitions.
Model providers reject an ``enum`` without a ``type``, and clients warn about formats that JSON Schema doesn't define.
Schema generators write both.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from math import isfinite
from typing import Any, Final, TypeVar, cast

from .fields import JSONObject, json_type

T = TypeVar("T")

_MOST: Final = 1_000
"""Maximum number of objects in a schema after its references were replaced. A larger schema is easier to read with
separate definitions."""
_MOST_DEFINITIONS: Final = 100
_PREFIXES: Final = ("#/$defs/", "#/definitions/")
_DATA: Final = frozenset(("const", "default", "discriminator", "enum", "example", "examples"))
"""JSON Schema keywords whose values aren't schemas."""
_NAMED: Final = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""JSON Schema keywords whose values are schemas, keyed by name."""
_NOTES: Final = frozenset(("title", "description", "default", "deprecated", "examples", "readOnly", "writeOnly"))
"""Keywords beside a reference that override the same keywords of the definition."""
_OTHER_WAYS: Final = frozenset(("$id", "id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef"))


class _TooLarge(Exception):
    pass


def inlined(schema: JSONObject) -> JSONObject:
    """Return ``schema`` with each local reference (``$ref``) replaced by its definition.

    Definitions that refer to themselves, directly or indirectly, stay, with all definitions that they need. The same
    object is returned if there is nothing to replace, if the result would be too large, or if the schema has
    identifiers or anchors, because references may then mean something else.
    """
    keyword = next((key for key in ("$defs", "definitions") if key in schema), None)
    if keyword is None or any(not _OTHER_WAYS.isdisjoint(each) for each in schemas_in(schema)):
        return schema
    definitions = cast("dict[str, Any]", schema[keyword])
    rest = {key: value for key, value in schema.items() if key != keyword}
    needed = _reached({**definitions, "": rest}, "")
    if len(needed) > _MOST_DEFINITIONS:
        return schema
    try:
        finite = {name: definitions[name] for name in needed if name not in _reached(definitions, name)}
        whole = _Inlining(finite).of(rest)
    except _TooLarge:
        return schema
    kept = _reached({**definitions, "": whole}, "")
    return {**whole, keyword: {name: definitions[name] for name in definitions if name in kept}} if kept else whole


class _Inlining:
    """Replaces references to the ``definitions`` of a JSON Schema by their content, except for recursive
    definitions."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._count = 0

    def of(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self.of(each) for each in cast("list[Any]", schema)]
        if not isinstance(schema, dict):
            return schema
        self._count += 1
        if self._count > _MOST:
            raise _TooLarge
        members = cast("JSONObject", schema)
        name = _named_by(members.get("$ref"))
        if name is None or name not in self._definitions:
            return {key: self._member(key, value) for key, value in members.items()}
        beside = {key: self._member(key, value) for key, value in members.items() if key != "$ref"}
        target = self.of(self._definitions[name])
        if isinstance(target, dict) and (beside.keys() & (whole := cast("JSONObject", target)).keys()) <= _NOTES:
            return {**whole, **beside}
        all_of: list[Any] = [target, *beside.get("allOf", [])]
        return {**beside, "allOf": all_of}

    def _member(self, key: str, value: Any) -> Any:
        if key in _DATA:
            return value
        if key in _NAMED and isinstance(value, dict):
            return {name: self.of(each) for name, each in cast("JSONObject", value).items()}
        return self.of(value)


def _named_by(reference: Any) -> str | None:
    """Return the name of the definition that the ``$ref`` value ``reference`` points to.

    Return `None` if it points to something else.
    """
    if isinstance(reference, str):
        for prefix in _PREFIXES:
            name = reference.removeprefix(prefix)
            if name != reference and not any(sign in name for sign in "/~%"):
                return name
    return None


def _reached(definitions: dict[str, Any], start: str) -> set[str]:
    """Return the names of the definitions to which the definition ``start`` refers, directly or indirectly."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for each in schemas_in(definitions[ahead.pop()]):
            name = _named_by(each.get("$ref"))
            if name is not None and name in definitions and name not in found:
                found.add(name)
                ahead.append(name)
    return found


_FORMATS: Final = frozenset(("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "uuid")) | {
    *("idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uri-template"),
    *("json-pointer", "relative-json-pointer", "regex"),
}
"""The formats that JSON Schema defines (2020-12 validation, 7.3)."""
_ENCODINGS: Final = {"byte": "base64", "base64": "base64", "base64url": "base64url"}
"""Formats that aren't in JSON Schema, and the ``contentEncoding`` that replaces each of them."""


def portable(schema: T) -> T:
    """Return ``schema`` with only those keywords that all MCP hosts accept.

    If nothing changes, return the same object. An ``enum`` or ``const`` gets the ``type`` of its values. Repeated
    values of an ``enum``, unknown formats, OpenAPI's ``discriminator``, infinite bounds and defaults, and conditions on
    names that no name can meet are removed.
    """
    if all(_fixed(node) == node for node in schemas_in(schema)):
        return schema
    made = copy.deepcopy(schema)
    for node in schemas_in(made):
        fixed = _fixed(node)
        node.clear()
        node.update(fixed)
    return made


def _fixed(node: JSONObject) -> JSONObject:
    """Return the schema ``node`` with only those keywords that all MCP hosts accept. Its subschemas aren't changed."""
    made = {
        key: value
        for key, value in node.items()
        if key != "discriminator" and not (isinstance(value, float) and not isfinite(value))  # JSON has no infinity
    }
    kind, names = made.get("format"), made.get("propertyNames")
    if isinstance(kind, str) and kind not in _FORMATS:
        del made["format"]
        made |= {"contentEncoding": _ENCODINGS[kind]} if kind in _ENCODINGS else {}
    if isinstance(names, dict) and _fixed(cast("JSONObject", names)).get("type", "string") != "string":
        del made["propertyNames"]  # names are text
    values: Any = [made["const"]] if "const" in made else made.get("enum")
    if not isinstance(values, list):
        return made
    choices = list({repr(each): each for each in cast("list[Any]", values)}.values())
    made |= {"enum": choices} if "enum" in made else {}
    by_type: dict[str, list[Any]] = {}
    for each in choices:
        by_type.setdefault(json_type(each), []).append(each)
    if "type" in made or "" in by_type or not by_type or (len(by_type) > 1 and "anyOf" in made):
        return made
    if len(by_type) == 1:
        return {"type": next(iter(by_type)), **made}
    del made["enum"]
    typed = [{"type": kind} | ({"enum": some} if some != [None] else {}) for kind, some in by_type.items()]
    return {**made, "anyOf": typed}


def schemas_in(schema: Any) -> Iterator[JSONObject]:
    """Yield ``schema`` and all its subschemas, except for the schemas ``true`` and ``false``."""
    ahead = [schema]
    while ahead:
        each = ahead.pop()
        if isinstance(each, list):
            ahead += cast("list[Any]", each)
        elif isinstance(each, dict):
            members = cast("JSONObject", each)
            yield members
            for key, value in members.items():
                if key in _NAMED and isinstance(value, dict):
                    ahead += cast("JSONObject", value).values()
                elif key not in _DATA and not key.startswith("x-"):
                    ahead.append(value)


def at_pointer(root: JSONObject, pointer: str) -> Any:
    """Return the value in ``root`` to which a JSON Pointer (RFC 6901) points.

    The pointer may begin with ``#``. Return `None` if there is no such value.
    """
    node: Any = root
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = cast("JSONObject", node).get(token)
        elif isinstance(node, list) and token.isdecimal() and len(token) < 10:
            items = cast("list[Any]", node)
            node = items[int(token)] if int(token) < len(items) else None
        else:
            return None
    return node
