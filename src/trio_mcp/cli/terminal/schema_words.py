"""SchemaReader: describe JSON Schemas of a peer in a few words. Reading always ends, whatever the references."""

from __future__ import annotations

import json
from typing import Any, Final, cast

from ...protocol.fields import JSONObject

ENOUGH: Final = 500_000
"""Steps that read the schemas of some ten thousand tools, in about a second."""
_LENGTH_A_STEP: Final = 32
"""Characters of a reference that cost one step."""
_CHOICES_TOLD: Final = 6
_LONGEST: Final = 60
"""Characters shown of a choice, or of a type's name."""
_KEYWORDS: Final = ("anyOf", "oneOf", "allOf")


class SchemaReader:
    """A reader of schemas that describes the allowed values.

    All schemas of a reader share its ``steps``: one step for each schema, choice, type and reference, more for long
    references. Without steps left, every schema allows no type, and its words are ``…``.
    """

    def __init__(self, steps: int = ENOUGH) -> None:
        self._left = steps

    @property
    def exhausted(self) -> bool:
        """True once the steps are used up."""
        return self._left < 0

    def resolved(self, schema: Any, root: JSONObject) -> JSONObject:
        """Return ``schema``, or the target of its references into ``root``; ``{}`` for anything that is not a schema,
        cannot be found, or refers to itself in a circle."""
        seen: set[str] = set()
        while self._take(1) and isinstance(schema, dict):
            members = cast("JSONObject", schema)
            reference = members.get("$ref")
            if not isinstance(reference, str):
                return members
            if not self._take(len(reference) // _LENGTH_A_STEP) or reference in seen:
                break
            seen.add(reference)
            schema = _at(reference, root)
        return {}

    def type_names(self, schema: Any, root: JSONObject) -> set[str]:
        """Return the JSON types that ``schema`` allows by its own members, its choices or its references; empty if it
        names no type."""
        names: set[str] = set()
        waiting: list[Any] = [schema]
        seen: set[int] = set()
        while waiting:
            # A schema gives the same types wherever it is met again, so the second time adds nothing.
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
        """Say what a value may be, in a word or a few: ``integer``, ``a | b``, ``array of string``."""
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

    def _take(self, steps: int) -> bool:
        """Take ``steps`` and return whether so many were left."""
        self._left -= steps
        return not self.exhausted

    def _own_names(self, members: JSONObject) -> set[str] | None:
        """Return the types given by the schema itself; `None` if only its branches give types."""
        kind = members.get("type")
        if isinstance(kind, str):
            return {kind[:_LONGEST]}
        if isinstance(kind, list):
            names = cast("list[Any]", kind)
            return {name[:_LONGEST] for name in names if isinstance(name, str)} if self._take(len(names)) else set()
        if "const" in members:
            return {_type_of(members["const"])}
        choices = members.get("enum")
        if isinstance(choices, list):
            values = cast("list[Any]", choices)
            return {_type_of(value) for value in values} if self._take(len(values)) else set()
        return None

    def _branches(self, members: JSONObject) -> list[Any]:
        branches: list[Any] = []
        for keyword in _KEYWORDS:
            more = members.get(keyword)
            if isinstance(more, list) and self._take(len(cast("list[Any]", more))):
                branches += cast("list[Any]", more)
        return branches


def _at(reference: str, root: JSONObject) -> Any:
    if not reference.startswith("#/"):
        return None
    place: Any = root
    for step in reference.removeprefix("#/").split("/"):
        if not isinstance(place, dict):
            return None
        place = cast("JSONObject", place).get(step.replace("~1", "/").replace("~0", "~"))
    return place


def _choice(value: Any) -> str:
    """Return a choice as typed by a user, cut when long."""
    match value:
        case str():
            return value[:_LONGEST]
        case list():
            return "[…]"
        case dict():
            return "{…}"
        case _:
            return json.dumps(value)[:_LONGEST]


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
