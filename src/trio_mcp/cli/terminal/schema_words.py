"""JSON Schemas in a few words, for tables."""

from __future__ import annotations

from typing import Any, Final, cast

from ...spec.fields import JSONObject

__all__ = ["resolved", "type_names", "type_words"]

_DEPTH: Final = 8
_CHOICES_TOLD: Final = 6


def resolved(schema: Any, root: JSONObject) -> JSONObject:
    """``schema``, or what its reference into ``root`` stands for; ``{}`` for what is no schema, or cannot be found."""
    for _ in range(_DEPTH):
        if not isinstance(schema, dict):
            return {}
        members = cast("JSONObject", schema)
        reference = members.get("$ref")
        if not isinstance(reference, str):
            return members
        schema = _at(reference, root)
    return {}


def _at(reference: str, root: JSONObject) -> Any:
    if not reference.startswith("#/"):
        return None
    place: Any = root
    for step in reference.removeprefix("#/").split("/"):
        if not isinstance(place, dict):
            return None
        place = cast("JSONObject", place).get(step.replace("~1", "/").replace("~0", "~"))
    return place


def type_names(schema: Any, root: JSONObject, depth: int = _DEPTH) -> set[str]:
    """The JSON types that ``schema`` allows, as it says them itself, in its choices or by its references. Empty: it
    does not say."""
    members = resolved(schema, root)
    kind = members.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {name for name in cast("list[Any]", kind) if isinstance(name, str)}
    if "const" in members:
        return {_type_of(members["const"])}
    if isinstance(choices := members.get("enum"), list):
        return {_type_of(choice) for choice in cast("list[Any]", choices)}
    names: set[str] = set()
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = members.get(keyword)
        for branch in cast("list[Any]", branches) if depth and isinstance(branches, list) else []:
            names |= type_names(branch, root, depth - 1)
    return names


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


def type_words(schema: Any, root: JSONObject) -> str:
    """What a value may be, in a word or a few: ``integer``, ``a | b``, ``array of string``."""
    members = resolved(schema, root)
    choices = members.get("enum")
    if isinstance(choices, list):
        words = [str(choice) for choice in cast("list[Any]", choices)]
        return " | ".join(words[:_CHOICES_TOLD]) + (" | …" if len(words) > _CHOICES_TOLD else "")
    names = sorted(type_names(members, root)) or ["any"]
    if names == ["array"] and (items := type_names(members.get("items"), root)):
        return f"array of {' | '.join(sorted(items))}"
    return " | ".join(names)
