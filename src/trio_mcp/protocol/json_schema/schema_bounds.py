"""Schema bounds: how large a value may be to be checked against a JSON Schema.

jsonschema-rs checks a value in one go, and holds the interpreter: no other task is served, and nothing can stop the
check. Most schemas are checked in less time than decoding the value took. Some keywords, however, take a hundred times
as long for a number, comparisons do so for numbers of many digits, and ``uniqueItems`` compares each pair of these.
Keywords other than the cheap ones are therefore checked for values of bounded size only.
"""

from __future__ import annotations

from typing import Any, Final, cast

from ...jsonrpc.extent import is_checkable
from ..fields import JSONObject

_MOST: Final = 100_000
"""Items and members: with so many, the most expensive keywords take less than half a second."""
_FEW: Final = 10
"""Alternatives that can be tried in the time allotted to each item."""

_SAY_NOTHING: Final = frozenset(
    ("$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description")
) | {"examples", "readOnly", "title", "writeOnly"}
_COUNT: Final = frozenset(("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"))
_CHEAP: Final = _SAY_NOTHING | _COUNT | {"required", "type"}
_BELOW: Final = frozenset(("additionalProperties", "items", "prefixItems", "properties"))
_NULL: Final = {"type": "null"}
_LISTS: Final = frozenset(("allOf", "anyOf", "enum", "oneOf", "patternProperties", "dependentSchemas", "dependencies"))


class SchemaBounds:
    """The bounds of values that are checked against ``schema``, for each member of an object separately as far as the
    schema allows."""

    def __init__(self, schema: JSONObject) -> None:
        self._most = max(1, _MOST * _FEW // max(_FEW, _alternatives(schema)))
        self._apart = _is_cheap({keyword: said for keyword, said in schema.items() if keyword != "properties"})
        properties = cast("JSONObject", schema.get("properties") or {}) if self._apart else {}
        self._dear = [name for name, below in properties.items() if not _is_cheap(below)]

    def exceeded(self, value: Any) -> str | None:
        """Return a text if ``value`` is too large to be checked; `None` if not."""
        dear: list[Any] = [value]
        if self._apart:
            members = cast("JSONObject", value if isinstance(value, dict) else {})
            dear = [members[name] for name in self._dear if name in members]
        if is_checkable(dear, self._most + len(dear)):
            return None
        return (
            f"too large to be checked: there are more than {self._most} items and members where the schema says more "
            "than the types of values (an integer of more than 64 bits counts as 1000 of them, or more)"
        )


def _is_cheap(schema: Any) -> bool:
    """Return whether checking takes only a few steps for each part of a value, whatever the value is."""
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if not isinstance(node, dict):
            if not isinstance(node, bool):
                return False
            continue
        for keyword, said in cast("JSONObject", node).items():
            if keyword in _BELOW:
                pending += _schemas(keyword, said)
            elif keyword == "anyOf" and _NULL in said and len(said) == 2:  # an optional value, in many languages
                pending += said
            elif keyword not in _CHEAP and not (keyword == "enum" and all(map(_is_looked_up, said))):
                return False
    return True


def _schemas(keyword: str, said: Any) -> list[Any]:
    if keyword == "properties":
        return list(cast("JSONObject", said).values())
    return cast("list[Any]", said) if isinstance(said, list) else [said]


def _alternatives(schema: JSONObject) -> int:
    """Return the largest number of alternatives in one place of ``schema``."""
    most, pending = 0, list[Any]([schema])
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            members = cast("JSONObject", item)
            most = max(most, *(_tried(said) for keyword, said in members.items() if keyword in _LISTS), 0)
            pending += members.values()
        elif isinstance(item, list):
            pending += cast("list[Any]", item)
    return most


def _tried(said: Any) -> int:
    """Return how many entries of a list or object have to be tried; strings to choose from are looked up."""
    if isinstance(said, list):
        choices = cast("list[Any]", said)
        return 0 if all(map(_is_looked_up, choices)) else len(choices)
    return len(cast("JSONObject", said)) if isinstance(said, dict) else 0


def _is_looked_up(choice: Any) -> bool:
    return choice is None or isinstance(choice, str)
