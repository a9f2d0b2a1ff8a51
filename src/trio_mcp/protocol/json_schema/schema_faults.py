"""Schema faults: why a value does not fit a JSON Schema, at a cost that the sender cannot raise.

jsonschema-rs tells at once, and without copying, whether a value fits. The reasons come only after collecting all
faults, each with a copy of the wrong value, and the faults of all alternatives in all alternatives: 11 GiB for 16 MiB
of numbers in place of strings, and minutes for sixteen levels of a value whose schema refers to itself. Reasons are
therefore requested for small parts only, and the wrong part is found by asking whether each part fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, cast
from urllib.parse import unquote

from ...jsonrpc.extent import MOST_LEVELS, is_small
from ..fields import JSONObject

_FAULTS_TOLD: Final = 5
_LONGEST: Final = 300
"""Longest fault in characters; a fault quotes the wrong value."""
_PARTS: Final = 1000
_CHARACTERS: Final = 20_000
_LOOKED_AT: Final = 10_000
"""Items of one list that are searched."""
_STEPS: Final = 6
"""Steps down into a value, each of which may check nearly all of the value once more."""
_HOPS: Final = 32
"""References that are followed one after another."""
_REFERENCES: Final = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
_ALTERNATIVES: Final = frozenset(("allOf", "anyOf", "contains", "dependentSchemas", "if", "not", "oneOf"))


class SchemaFaults:
    """Explains why values do not fit ``schema``. ``compiled`` gives the validators of the parts of the schema by their
    pointers, and is called at their first use."""

    def __init__(self, schema: JSONObject, compiled: Callable[[], Any]) -> None:
        self._schema = schema
        self._compiled = compiled
        self._validators: Any = None
        self._levels = MOST_LEVELS

    def told(self, value: Any) -> str:
        """Return, in one line, the first few faults of an invalid ``value``; one fault for a large value."""
        if self._validators is None:
            self._validators = self._compiled()
            if _multiplies(self._schema):
                self._levels = 1
        pointer, place, part, steps = "#", "", value, 0
        while not is_small(part, _PARTS, _CHARACTERS, self._levels):
            node, pointer = self._resolved(pointer)
            steps += 1
            for step, below, item in _parts(node, pointer, part) if steps <= _STEPS else ():
                validator = self._validators.get(below)
                if validator is not None and not validator.is_valid(item):
                    pointer, place, part = below, place + step, item
                    break
            else:
                return _at(place, _in_short(node, part))
        faults = [
            _at(place + "".join(map(_step, error.instance_path)), error.message)
            for error in islice(self._validators.get(pointer).iter_errors(part), _FAULTS_TOLD)
        ]
        return "; ".join(faults)

    def place_of(self, value: Any, fits: Callable[[Any, Any], bool]) -> str:
        """Return in one line where the fault of an invalid ``value`` is, for a value of which ``told`` would take too
        long. ``fits`` says whether a part fits a subschema."""
        node, place, part = self._schema, "", value
        for _ in range(_STEPS):
            for step, below, item in _parts(node, "#", part):
                inner = _node(node, below)
                if inner and not fits(inner, item):
                    node, place, part = inner, place + step, item
                    break
            else:
                break
        return _at(place, _in_short(node, part))

    def _resolved(self, pointer: str) -> tuple[JSONObject, str]:
        """Return the subschema at ``pointer``, or the target of its reference, with the pointer to the result."""
        node = _node(self._schema, pointer)
        for _ in range(_HOPS):
            reference = node.get("$ref")
            target = unquote(reference) if isinstance(reference, str) else ""
            if not target.startswith("#") or self._validators.get(target) is None:
                break
            node, pointer = _node(self._schema, target), target
        return node, pointer


def _multiplies(schema: JSONObject) -> bool:
    """Return whether the faults of a value may be many times those of its parts: alternatives that refer to others."""
    found: set[str] = set()
    pending: list[Any] = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            members = cast("JSONObject", item)
            found.update(members)
            pending.extend(members.values())
        elif isinstance(item, list):
            pending.extend(cast("list[Any]", item))
    return not found.isdisjoint(_REFERENCES) and not found.isdisjoint(_ALTERNATIVES)


def _parts(node: JSONObject, pointer: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the parts of ``value`` that have a subschema: the step to the part, the schema's pointer, and the part."""
    if isinstance(value, dict):
        members = cast("JSONObject", value)
        for name in cast("JSONObject", node.get("properties") or {}):
            if name in members:
                below = f"{pointer}/properties/{name.replace('~', '~0').replace('/', '~1')}"
                yield _step(name), below, members[name]
    elif isinstance(value, list):
        for index, item in enumerate(islice(cast("list[Any]", value), _LOOKED_AT)):
            yield _step(index), f"{pointer}/items", item


def _node(schema: JSONObject, pointer: str) -> JSONObject:
    node: Any = schema
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        node = node[int(token) if isinstance(node, list) else token]  # pyright: ignore[reportUnknownVariableType] JSON data
    return cast("JSONObject", node) if isinstance(node, dict) else {}


def _in_short(node: JSONObject, part: Any) -> str:
    """Return the fault of a large part whose own parts, as far as searched, fit."""
    required: Any = node.get("required")
    if isinstance(part, dict) and isinstance(required, list):
        for name in cast("list[Any]", required):
            if name not in part:
                return f'"{name}" is a required property'
    return "a value does not fit the schema, and is too large or too deep to say why"


def _step(step: str | int) -> str:
    return f".{step}" if isinstance(step, str) else f"[{step}]"


def _at(place: str, fault: str) -> str:
    fault = fault if len(fault) <= _LONGEST else f"{fault[:_LONGEST]}…"
    return fault + (f" at {place.removeprefix('.')}" if place else "")
