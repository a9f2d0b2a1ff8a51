"""Example objects of every class of the specification, built from its annotations.

`minimal` fills in what a class requires and nothing else, `full` everything that a revision can say;
`restricted` is what is left of an object after that revision said it.
"""

from __future__ import annotations

from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from trio_mcp.protocol.fields import history_of
from trio_mcp.protocol.methods import Method
from trio_mcp.protocol.revisions import REVISIONS, Revision
from trio_mcp.protocol.types.content import ResourceLink, UnknownContent
from trio_mcp.protocol.types.elicitation import ElicitURLParams

__all__ = ["CASES", "full", "minimal", "restricted", "sayable_classes"]

# Values by name, where the annotation alone does not tell what is meaningful.
_NAMED: dict[str, Any] = {
    "input_schema": {"type": "object", "properties": {"depth": {"type": "integer"}}},
    "output_schema": {"type": "object", "required": ["depth"]},
    "requested_schema": {"type": "object", "properties": {"berth": {"type": "string", "maxLength": 3}}},
    "content": {"berth": "C7", "nights": 2, "shade": 0.5, "pets": False},
    "structured_content": {"depth": 4},
    "data": ["slack water", {"knots": 0.3}, None],
}
_PLAIN: dict[Any, Any] = {
    str: "tide",
    int: 7,
    float: 0.25,
    bool: True,
    Any: {"rope": [1, 2.5, None, "splice"]},
    dict[str, Any]: {"harbour": {"berths": [1, 2], "open": None}},
}


def members(kind: Any) -> list[Any]:
    """The members of a union without `None`; a list of ``kind`` itself for what is no union."""
    if get_origin(kind) in (Union, UnionType):
        return [member for member in get_args(kind) if member is not NoneType]
    return [kind]


def kinds(method: Method, revision: Revision) -> list[Any]:
    """What ``method`` carries in ``revision``: parameters, then the result."""
    return [kind for kind in (*members(method.params), method.result) if kind and _sayable(kind, revision)]


def _sayable(kind: Any, revision: Revision) -> bool:
    if kind is ResourceLink:
        return revision.structured_content != "none"
    return kind is not UnknownContent and getattr(kind, "_SINCE", revision.name) <= revision.name


def _said(field: attrs.Attribute[Any], revision: Revision) -> bool:
    first, last = history_of(field)
    return (first is None or first <= revision.name) and (last is None or revision.name <= last)


def minimal(kind: Any, revision: Revision) -> Any:
    return _build(kind, revision, whole=False)


def full(kind: Any, revision: Revision) -> Any:
    return _build(kind, revision, whole=True)


def _build(kind: Any, revision: Revision, *, whole: bool, name: str = "") -> Any:
    options = [member for member in members(kind) if _sayable(member, revision)]
    # Where a list may stand for a single block, in messages of sampling, it may do so since 2025-11-25.
    several = len(options) == 1 or (whole and revision.name >= "2025-11-25")
    listed = next((option for option in options if get_origin(option) is list), None)
    if listed is not None and name == "extensions":
        return ["com.example/tide"]  # members of their own in JSON, which are known by the form of their names
    if listed is not None and several:
        items = members(get_args(listed)[0])
        return [_build(item, revision, whole=True) for item in items if whole and _sayable(item, revision)]
    chosen = options[-1] if whole and listed is None else options[0]
    if get_origin(chosen) is Literal:
        return get_args(chosen)[-1]
    if attrs.has(chosen):
        return _build_object(chosen, revision, whole=whole)
    if isinstance(chosen, type) and issubclass(chosen, Enum):
        return list(chosen)[-1]
    if name in _NAMED and chosen is not str:
        return _NAMED[name]
    if get_origin(chosen) is dict and chosen not in _PLAIN:
        return {"ebb": _build(get_args(chosen)[1], revision, whole=whole)}
    return _PLAIN[chosen]


def _build_object(kind: type, revision: Revision, *, whole: bool) -> Any:
    attrs.resolve_types(kind)
    required = {"elicitation_id"} if kind is ElicitURLParams else set[str]()
    return kind(
        **{
            field.name: _build(field.type, revision, whole=whole, name=field.name)
            for field in attrs.fields(kind)
            if whole or field.default is attrs.NOTHING or field.name in required
        }
    )


def restricted(value: Any, revision: Revision) -> Any:
    if isinstance(value, list):
        return [restricted(item, revision) for item in value]
    if not attrs.has(type(value)):
        return value
    changes = {
        field.name: restricted(getattr(value, field.name), revision) if _said(field, revision) else field.default
        for field in attrs.fields(type(value))
    }
    return type(value)(**changes)


CASES = [
    (revision, method.name, kind)
    for revision in REVISIONS.values()
    for method in revision._methods.values()
    for kind in kinds(method, revision)
]


def _classes(kind: Any, found: dict[Any, None]) -> None:
    for member in members(kind):
        for inner in get_args(member):
            _classes(inner, found)
        if isinstance(member, type) and attrs.has(member) and member not in found:
            found[member] = None
            attrs.resolve_types(member)
            for field in attrs.fields(member):
                _classes(field.type, found)


def sayable_classes(revision: Revision) -> list[Any]:
    """Every class that any method carries anywhere, if ``revision`` has words for it at all."""
    found: dict[Any, None] = {}
    for _, _, kind in CASES:
        _classes(kind, found)
    return [kind for kind in found if _sayable(kind, revision)]
