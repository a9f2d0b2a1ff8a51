"""Schema evaluation: each part of a schema is evaluated once for each part of a value.

jsonschema-rs evaluates a part anew for each way that leads there, and ways may multiply with each level of a value. So
where there are too many ways (`SchemaGrowth`), the keywords that hold schemas are evaluated here, with a memory, and
the others by jsonschema-rs, part by part. That takes longer for each part, and its bound is lower.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, cast

from .fields import JSONObject
from .schema_growth import SCHEMA_KEYWORDS, anchors_in, targets_of

_MOST: Final = 50_000
"""Evaluations for one value: half a second."""
_UNKNOWN: Final = frozenset(("$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"))
"""Keywords that depend on the way that leads to them, or on what else was evaluated."""
_OLD: Final = ("draft-04", "draft-06", "draft-07")


_Steps: TypeAlias = Generator[tuple[Any, Any], bool, bool]


class TooManyEvaluations(Exception):
    """The value cannot be checked within the bound."""


class SchemaEvaluation:
    """The evaluation of one value against ``schema``, whose keywords without schemas are given to what ``compiled``
    makes of them."""

    def __init__(self, schema: JSONObject, compiled: Callable[[JSONObject], Any]) -> None:
        self._schema = schema
        self._compiled = compiled
        self._anchors = anchors_in(schema)
        dialect = schema.get("$schema")
        self._dialect: JSONObject = {} if dialect is None else {"$schema": dialect}
        self._is_old = isinstance(dialect, str) and any(name in dialect for name in _OLD)
        self._known: dict[tuple[int, int], bool | None] = {}
        """What is known of a part of the schema and a part of the value; `None` while it is found out."""
        self._validators: dict[int, Any] = {}
        self._patterns: dict[str, Any] = {}
        if any("$id" in node or "id" in node for nodes in self._anchors.values() for node in nodes if node != schema):
            raise TooManyEvaluations  # references are relative to these

    def fits(self, node: Any, value: Any) -> bool:
        """Return whether ``value`` fits the subschema ``node``. Raises `TooManyEvaluations`."""
        # No recursion: a value has up to 256 levels, and each may take several steps through the schema.
        known = self._known
        fits = self._known_of(node, value)
        open_ones: list[tuple[tuple[int, int], _Steps]] = []
        while True:
            if fits is None:
                key = id(node), id(value)
                known[key] = None
                open_ones.append((key, self._evaluated(node, value)))
            elif not open_ones:
                return fits
            try:
                node, value = open_ones[-1][1].send(cast("bool", fits))  # `None` begins
            except StopIteration as end:
                key, _ = open_ones.pop()
                fits = known[key] = bool(end.value)
            else:
                fits = self._known_of(node, value)

    def _known_of(self, node: Any, value: Any) -> bool | None:
        """Return whether ``value`` fits ``node``; `None` where that is to be found out."""
        if not isinstance(node, dict):
            return bool(node)
        key = id(cast("JSONObject", node)), id(value)
        if key in self._known:
            found = self._known[key]
            if found is None:  # it refers to itself in the same place
                raise TooManyEvaluations
            return found
        if len(self._known) >= _MOST or not _UNKNOWN.isdisjoint(cast("JSONObject", node)):
            raise TooManyEvaluations
        return None

    def _evaluated(self, node: JSONObject, value: Any) -> _Steps:
        """Evaluate ``node``. Each subschema that counts is yielded with its value, and what it gives is sent back."""
        if "$ref" in node:
            targets = targets_of(self._schema, node["$ref"], self._anchors)
            if len(targets) != 1:
                raise TooManyEvaluations
            fits = yield targets[0], value
            if self._is_old or not fits:  # what stands beside a reference counts since 2019-09
                return fits
        if not self._plainly_fits(node, value) or not (yield from self._fits_here(node, value)):
            return False
        if isinstance(value, dict):
            return (yield from self._members_fit(node, cast("JSONObject", value)))
        return (yield from self._items_fit(node, cast("list[Any]", value))) if isinstance(value, list) else True

    def _plainly_fits(self, node: JSONObject, value: Any) -> bool:
        """Return whether ``value`` fits the keywords that hold no schemas."""
        validator = self._validators.get(id(node))
        if validator is None:
            rest = {keyword: said for keyword, said in node.items() if keyword not in SCHEMA_KEYWORDS}
            needed: Any = node.get("dependencies")
            if isinstance(needed, dict):
                names = cast("JSONObject", needed).items()
                rest["dependencies"] = {name: cast("Any", said) for name, said in names if isinstance(said, list)}
            validator = self._validators[id(node)] = self._compiled(self._dialect | rest)
        return validator.is_valid(value)

    def _fits_here(self, node: JSONObject, value: Any) -> _Steps:
        for said in node.get("allOf", ()):
            if not (yield said, value):
                return False
        if "anyOf" in node and not (yield from _count(node["anyOf"], value, 1)):
            return False
        if "oneOf" in node and (yield from _count(node["oneOf"], value, 2)) != 1:
            return False
        if "not" in node and (yield node["not"], value):
            return False
        if "if" in node:
            follows = node.get("then" if (yield node["if"], value) else "else", True)
            if not (yield follows, value):
                return False
        if isinstance(value, dict):
            needed: dict[str, Any] = {**node.get("dependencies", {}), **node.get("dependentSchemas", {})}
            for name, said in needed.items():
                if name in value and not isinstance(said, list) and not (yield said, value):
                    return False
        return True

    def _members_fit(self, node: JSONObject, value: JSONObject) -> _Steps:
        named: JSONObject = node.get("properties", {})
        patterns: JSONObject = node.get("patternProperties", {})
        other, names = node.get("additionalProperties", True), node.get("propertyNames", True)
        for name, member in value.items():
            matching = [said for pattern, said in patterns.items() if self._matches(pattern, name)]
            if name in named:
                matching.append(named[name])
            for said in matching or (other,):
                if not (yield said, member):
                    return False
            if not (yield names, name):
                return False
        return True

    def _matches(self, pattern: str, name: str) -> bool:
        validator = self._patterns.get(pattern)
        if validator is None:
            validator = self._patterns[pattern] = self._compiled(self._dialect | {"pattern": pattern})
        return validator.is_valid(name)

    def _items_fit(self, node: JSONObject, value: list[Any]) -> _Steps:
        first: Any = node.get("prefixItems", ())
        rest: Any = node.get("items", True)
        if isinstance(rest, list):  # until 2019-09
            first, rest = cast("list[Any]", rest), node.get("additionalItems", True)
        for index, item in enumerate(value):
            if not (yield first[index] if index < len(first) else rest, item):
                return False
        if "contains" not in node:
            return True
        count = 0
        for item in value:
            count += yield node["contains"], item
        return node.get("minContains", 1) <= count <= node.get("maxContains", len(value))


def _count(listed: list[Any], value: Any, most: int) -> Generator[tuple[Any, Any], bool, int]:
    """Return how many of the schemas ``listed`` the value fits, as far as ``most``."""
    count = 0
    for said in listed:
        count += yield said, value
        if count == most:
            break
    return count
