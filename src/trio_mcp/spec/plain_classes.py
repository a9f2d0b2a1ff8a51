"""Plain classes: JSON data as the classes that authors write, dataclasses, TypedDicts and the like.

msgspec does the work, strictly: JSON types are never coerced. But 3.0 is an integer to JSON Schema (2020-12
validation, 6.1.1), so it is one wherever a type asks for an integer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import is_
from typing import Any, TypeAlias, TypeVar, cast, is_typeddict

import msgspec
from msgspec import inspect

__all__ = ["convert", "is_plain_class", "optional_fields", "with_whole_numbers"]

T = TypeVar("T")

_Fix: TypeAlias = Callable[[Any], Any]
"""Gives a value with whole numbers where they belong; the same object where that changes nothing."""


def is_plain_class(kind: Any) -> bool:
    """Return whether ``kind`` is a dataclass, TypedDict, NamedTuple or msgspec Struct."""
    if not isinstance(kind, type):
        return False
    is_named_tuple = tuple in kind.__mro__ and hasattr(kind, "_fields")
    is_struct = msgspec.Struct in kind.__mro__
    return is_named_tuple or is_struct or is_typeddict(kind) or dataclasses.is_dataclass(cast("Any", kind))


def convert(data: Any, kind: type[T]) -> T:
    """Return JSON data as a ``kind``. Raises `ValueError` naming the place that does not fit."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        whole = with_whole_numbers(data, kind)
        if whole is data:
            raise
    return msgspec.convert(whole, kind)


def optional_fields(kind: Any) -> Iterator[str]:
    """Give the names, as they travel, of the fields of a class that may be `None` and have no default."""
    for field in getattr(inspect.type_info(kind), "fields", ()):
        if field.required and _may_be_none(field.type):
            yield field.encode_name


def _may_be_none(info: Any) -> bool:
    match info:
        case inspect.Metadata(type=inner):
            return _may_be_none(inner)
        case inspect.UnionType(types=types):
            return any(map(_may_be_none, types))
        case inspect.LiteralType(values=values):
            return None in values
        case _:
            return isinstance(info, inspect.NoneType)


def with_whole_numbers(data: Any, kind: Any) -> Any:
    """Return ``data`` with an `int` for each float without a fraction where a ``kind`` has an integer.

    It is left as it is, and given back itself where nothing is to be changed. Takes time in proportion to its size.
    """
    try:
        return _fix_for(kind)(data)
    except RecursionError:  # too deep to be looked through, as for the one who found it wrong
        return data


@lru_cache(maxsize=256)
def _fix_for(kind: Any) -> _Fix:
    return _fix(inspect.type_info(kind), {}) or _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _whole(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


def _whole_items(items: list[Any]) -> list[Any]:
    """Return what `_whole` makes of a list of numbers, much faster; other lists are wrong, and stay as they are."""
    types = set(map(type, items))
    if float not in types or not types <= {int, float}:
        return items
    try:
        whole = list(map(int, items))
    except (OverflowError, ValueError):  # infinities and NaN
        return items
    return whole if whole == items else items


def _fix(info: Any, known: dict[int, _Fix]) -> _Fix | None:
    """Return what to do where the type is ``info``, `None` for nothing.

    ``known`` are the classes on the way here, by the ids of their infos.
    """
    match info:
        case inspect.IntType():
            return _whole
        case inspect.LiteralType(values=values):
            return _whole if any(type(each) is int for each in values) else None
        case inspect.EnumType(cls=cls):
            return _whole if any(type(each.value) is int for each in cls) else None
        case inspect.Metadata(type=inner):
            return _fix(inner, known)
        case inspect.UnionType(types=types):
            return _union(types, known)
        case inspect.TupleType(item_types=types):
            return _positions([_fix(each, known) for each in types])
        case _ if hasattr(info, "item_type"):
            return _items(_fix(info.item_type, known))
        case _ if hasattr(info, "value_type"):
            return _values(_fix(info.value_type, known))
        case _ if hasattr(info, "fields"):
            return _fields(info, known)
        case _:
            return None


def _union(types: Any, known: dict[int, _Fix]) -> _Fix | None:
    is_float = any(isinstance(each, inspect.FloatType | inspect.AnyType) for each in types)
    fixes = [fix for each in types if (fix := _fix(each, known)) is not None and not (is_float and fix is _whole)]

    def fix_any(value: Any) -> Any:
        for fix in fixes:
            value = fix(value)
        return value

    return fix_any if fixes else None


def _items(fix: _Fix | None) -> _Fix | None:
    if fix is None:
        return None

    def fix_items(value: Any) -> Any:
        if type(value) is not list:
            return value
        items = cast("list[Any]", value)
        if fix is _whole:
            return _whole_items(items)
        return items if all(fix(item) is item for item in items) else [fix(item) for item in items]

    return fix_items


def _values(fix: _Fix | None) -> _Fix | None:
    if fix is None:
        return None

    def fix_values(value: Any) -> Any:
        members = cast("dict[Any, Any]", value)
        if type(value) is not dict or all(fix(item) is item for item in members.values()):
            return members
        return {key: fix(item) for key, item in members.items()}

    return fix_values


def _positions(fixes: list[_Fix | None]) -> _Fix | None:
    def fix_positions(value: Any) -> Any:
        items = cast("list[Any]", value)
        if type(value) is not list:
            return items
        fixed = [item if fix is None else fix(item) for item, fix in zip(items, fixes, strict=False)]
        return items if all(map(is_, fixed, items)) else [*fixed, *items[len(fixed) :]]

    return fix_positions if any(fixes) else None


def _fields(info: Any, known: dict[int, _Fix]) -> _Fix:
    if id(info) in known:
        return known[id(info)]
    by_name: dict[str, _Fix] = {}
    by_position: list[_Fix | None] = []

    def fix_fields(value: Any) -> Any:
        members = cast("dict[str, Any]", value)
        if type(value) is list:  # NamedTuples travel so, and Structs that say so
            fix = _positions(by_position)
            return members if fix is None else fix(members)
        if type(value) is not dict:
            return members
        fixed = {name: by_name[name](item) for name, item in members.items() if name in by_name}
        return members if all(members[name] is item for name, item in fixed.items()) else {**members, **fixed}

    known[id(info)] = fix_fields  # before its fields, which may hold the class itself
    for field in info.fields:
        fix = _fix(field.type, known)
        by_position.append(fix)
        if fix is not None:
            by_name[field.encode_name] = fix
    return fix_fields
