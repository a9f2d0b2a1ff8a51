"""JSON Schemas in a few words, for tables. They are a peer's: whatever they refer to, reading them comes to an end."""

from __future__ import annotations

import json
from typing import Any, Final, cast

from ...spec.fields import JSONObject

__all__ = ["ENOUGH", "SchemaReader"]

ENOUGH: Final = 500_000
"""Steps that read the schemas of some ten thousand tools, in about a second."""
_LENGTH_A_STEP: Final = 32
"""So many characters of a reference are one step."""
_CHOICES_TOLD: Final = 6
_LONGEST: Final = 60
"""Characters of a choice, or of what should be the name of a type."""
_KEYWORDS: Final = ("anyOf", "oneOf", "allOf")


class SchemaReader:
    """A reader says what values schemas allow.

    All that one reader reads shares its ``steps``: one for each schema, choice, type and reference that it looks at,
    more for long references. When they are used up, every schema says nothing, and its words are ``…``.
    """

    def __init__(self, steps: int = ENOUGH) -> None:
        self._left = steps

    @property
    def exhausted(self) -> bool:
        """The steps are used up."""
        return self._left < 0

    def resolved(self, schema: Any, root: JSONObject) -> JSONObject:
        """Return ``schema``, or what its references into ``root`` lead to; ``{}`` for what is no schema, cannot be
        found, or leads in a circle."""
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
        """Return the JSON types that ``schema`` allows, as it says them itself, in its choices or by its references.
        Empty: it does not say."""
        names: set[str] = set()
        waiting: list[Any] = [schema]
        seen: set[int] = set()
        while waiting:
            # A schema says the same at whatever place it is met again, so the second time adds nothing.
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
        """Whether ``steps`` more were left."""
        self._left -= steps
        return not self.exhausted

    def _own_names(self, members: JSONObject) -> set[str] | None:
        """The types that it says itself; `None` when it leaves that to its branches."""
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
    """A choice as it would be typed, but for long ones."""
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
