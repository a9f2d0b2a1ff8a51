"""Allowed values: the choices of a schema at one place of a value, in words for an error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from .fields import JSONObject

_PLACE: Final = re.compile(r"^(?:Invalid enum|Invalid value|Expected).* at (`key` in )?`\$([^`]*)`$", re.DOTALL)
"""An error of msgspec about one value, and its place."""
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
"""The name of a member, or the index of an item; three dots are any member, or item of a set."""
_MOST: Final = 200
"""Schemas that are searched, and choices that are named."""
_LONGEST: Final = 1000


def with_choices(fault: str, schema: JSONObject) -> str:
    """Return an error of msgspec, with the allowed values if the place of the fault has an ``enum`` in ``schema``."""
    if (found := _PLACE.match(fault)) is None:
        return fault
    steps = [int(index) if index.isdigit() else name or index for name, index in _STEP.findall(found[2])]
    return fault + allowed_values(schema, schema, [*steps, *(["propertyNames"] if found[1] else [])])


def allowed_values(root: JSONObject, schema: JSONObject, place: Iterable[str | int]) -> str:
    """Return ": must be one of …" for the values that ``schema``, a part of ``root``, allows at ``place``; "" if that
    is not a choice."""
    nodes = _alternatives(root, [schema])
    for step in place:
        nodes = _alternatives(root, [_below(node, step) for node in nodes])
    choices = [each for node in nodes for each in node.get("enum") or ([node["const"]] if "const" in node else [])]
    if not choices:
        return ""
    others = dict.fromkeys(str(node["type"]) for node in nodes if "type" in node and "enum" not in node)
    words = ", ".join(msgspec.json.encode(choice).decode() for choice in choices[:_MOST])
    words = words if len(words) <= _LONGEST and len(choices) <= _MOST else f"{words[:_LONGEST]}, …"
    return f": must be one of {words}" + "".join(f", or {other}" for other in others)


def _alternatives(root: JSONObject, schemas: list[Any]) -> list[JSONObject]:
    """Return ``schemas``, with those that their references and alternatives lead to."""
    found = [cast("JSONObject", each) for each in schemas if isinstance(each, dict)]
    for node in found:  # grows
        if len(found) < _MOST:
            said = [root.get("$defs", {}).get(str(node.get("$ref", "")).removeprefix("#/$defs/"))]
            said += [each for keyword in ("anyOf", "oneOf", "allOf") for each in node.get(keyword, [])]
            found += [each for each in said if isinstance(each, dict)]
    return found


def _below(node: JSONObject, step: str | int) -> Any:
    """Return the schema of one item or member."""
    if isinstance(step, int):
        first = node.get("prefixItems", [])
        return first[step] if step < len(first) else node.get("items")
    if step in node.get("properties", {}):
        return node["properties"][step]
    return node.get("propertyNames" if step == "propertyNames" else "additionalProperties", node.get("items"))
