"""Comparison of a message with a pattern: the JSON data that is expected, with ``...`` where any value will do."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import msgspec

from ..protocol.fields import JSONObject

Pattern: TypeAlias = Any
"""JSON data in which ``...`` stands for any value, and ``{"id": 1, ...: ...}`` for an object with any further members.
Everything else is equal with its JSON type: ``1``, ``1.0``, ``"1"`` and ``True`` all differ. An object that is not
JSON, such as `unittest.mock.ANY` or `pytest.approx`, is compared by ``==``."""

_LONGEST = 300


def differences(expected: Pattern, got: Any, place: str = "$") -> list[str]:
    """Return the differences of ``got`` from ``expected``, a line for each place; empty when ``got`` fits."""
    if expected is ...:
        return []
    if isinstance(expected, dict):
        if not isinstance(got, dict):
            return [_differs(place, expected, got)]
        return _members(cast("dict[Any, Any]", expected), cast("JSONObject", got), place)
    if isinstance(expected, list):
        items = cast("list[Any]", expected)
        if not isinstance(got, list) or len(items) != len(cast("list[Any]", got)):
            return [_differs(place, expected, got)]
        pairs = enumerate(zip(items, cast("list[Any]", got), strict=True))
        return [line for number, (one, other) in pairs for line in differences(one, other, f"{place}[{number}]")]
    if isinstance(expected, str | int | float | None) and type(expected) is not type(got):
        return [_differs(place, expected, got)]
    return [] if expected == got else [_differs(place, expected, got)]


def _members(expected: dict[Any, Any], got: JSONObject, place: str) -> list[str]:
    lines: list[str] = []
    for name, value in expected.items():
        if name is ...:
            continue
        if name not in got:
            lines.append(f"{place}.{name}: expected {_short(value)}, but it is missing")
        else:
            lines += differences(value, got[name], f"{place}.{name}")
    if ... not in expected:
        lines += [f"{place}.{name}: not expected, got {_short(got[name])}" for name in got if name not in expected]
    return lines


def _differs(place: str, expected: Pattern, got: Any) -> str:
    return f"{place}: expected {_short(expected)}, got {_short(got)}"


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def shown(pattern: Pattern) -> str:
    """Return the pattern or message as JSON on one line, for people."""
    if pattern is ...:
        return "..."
    if isinstance(pattern, dict):
        members = cast("dict[Any, Any]", pattern).items()
        return (
            "{" + ", ".join("..." if name is ... else f"{shown(name)}: {shown(value)}" for name, value in members) + "}"
        )
    if isinstance(pattern, list):
        return "[" + ", ".join(map(shown, cast("list[Any]", pattern))) + "]"
    if isinstance(pattern, str | int | float | None):
        return msgspec.json.encode(pattern).decode()
    return repr(pattern)
