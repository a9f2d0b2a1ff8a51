"""Plain classes: JSON data as the classes that authors write, dataclasses, TypedDicts and the like.

msgspec does the work, strictly: JSON types are never coerced, except that 3.0 is an integer where a type asks for one
(JSON Schema 2020-12 validation, 6.1.1), and no `int` to msgspec. A peer decides how much data is searched for such
numbers. The data is therefore searched once, each value by one fix alone, and only where a fix may help and the data is
not too large.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import is_
from typing import Any, Final, TypeAlias, TypeVar, cast, is_typeddict

import msgspec
from msgspec import inspect

from ..jsonrpc.sizes import MOST_LEVELS, is_small
from .foreign_types import is_model, read_foreign, readable, schema_of_foreign

T = TypeVar("T")


def is_plain_class(kind: Any) -> bool:
    """Return whether ``kind`` is a dataclass, TypedDict, NamedTuple or msgspec Struct."""
    if not isinstance(kind, type):
        return False
    is_named_tuple = tuple in kind.__mro__ and hasattr(kind, "_fields")
    is_struct = msgspec.Struct in kind.__mro__
    return is_named_tuple or is_struct or is_typeddict(kind) or dataclasses.is_dataclass(cast("Any", kind))


def convert(data: Any, kind: type[T]) -> T:
    """Return JSON data as a ``kind``. Raises `ValueError` naming the place that does not fit."""
    kind = readable(kind)
    try:
        return msgspec.convert(data, kind, dec_hook=read_foreign)
    except msgspec.ValidationError as error:
        whole = with_whole_numbers(data, kind, error)
        if whole is data:
            raise
    return msgspec.convert(whole, kind, dec_hook=read_foreign)


def optional_fields(kind: Any) -> Iterator[str]:
    """Yield the names, as on the wire, of the fields of a class that may be `None` and have no default."""
    if is_model(kind):
        schema = schema_of_foreign(kind, read=True)
        for name in schema.get("required", ()):
            if {"type": "null"} in schema["properties"][name].get("anyOf", ()):
                yield name
        return
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


_Fix: TypeAlias = Callable[[Any], Any]
"""Returns a value with whole numbers where the type has integers; the same object if nothing changes."""

_MAY_BE_WHOLE: Final = "got `float`"
_MOST_PARTS: Final = 250_000
"""Items and members; so many take about a fifth of a second."""


def with_whole_numbers(data: Any, kind: Any, fault: Exception) -> Any:
    """Return ``data`` with an `int` for each float without a fraction where a ``kind`` has an integer.

    ``fault`` is the error of msgspec for ``data``. msgspec stops at the first fault, so a fault about anything but a
    float remains, whatever becomes of the floats behind it. ``data`` is never changed. The same object is returned if
    there is nothing to change, and if it has more than 250,000 items and members or too many levels of nesting.
    """
    if _MAY_BE_WHOLE not in str(fault) or not is_small(data, _MOST_PARTS, sys.maxsize, MOST_LEVELS):
        return data
    return _fix_for(kind)(data)


@lru_cache(maxsize=256)
def _fix_for(kind: Any) -> _Fix:
    return _fix(inspect.type_info(kind), {}) or (lambda value: value)


def _whole(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


def _fix(info: Any, known: dict[int, _Fix]) -> _Fix | None:
    """Return the fix for values of the type ``info``, `None` where none is needed.

    ``known`` are the fixes of the classes on the way here, by the ids of their infos.
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
    """Return the fix for values of one of ``types``: at most one of the types is an array and one an object, except for
    Structs with tags. No value is therefore searched twice."""
    is_float = any(isinstance(each, inspect.FloatType | inspect.AnyType) for each in types)
    tagged = {each.tag: each for each in types if getattr(each, "tag", None) is not None}
    fixes = [_tagged(tagged, known)] if tagged else []
    for each in types:
        fix = None if getattr(each, "tag", None) is not None else _fix(each, known)
        if fix is not None and not (is_float and fix is _whole):
            fixes.append(fix)

    def fix_any(value: Any) -> Any:
        for fix in fixes:
            value = fix(value)
        return value

    return fix_any if fixes else None


def _tagged(infos: dict[Any, Any], known: dict[int, _Fix]) -> _Fix:
    """Return the fix for Structs that are distinguished by a tag."""
    fixes = {tag: _fields(info, known) for tag, info in infos.items()}
    name = next(iter(infos.values())).tag_field  # the same for all Structs of a union

    def fix_tagged(value: Any) -> Any:
        tag = _tag_of(value, name)
        fix = fixes.get(tag) if isinstance(tag, str | int | float) else None
        return value if fix is None else fix(value)

    return fix_tagged


def _tag_of(value: Any, name: str) -> Any:
    if type(value) is dict:
        return cast("dict[str, Any]", value).get(name)
    items = cast("list[Any]", value) if type(value) is list else []
    return items[0] if items else None


def _items(fix: _Fix | None) -> _Fix | None:
    if fix is None:
        return None

    def fix_items(value: Any) -> Any:
        if type(value) is not list:
            return value
        items = cast("list[Any]", value)
        fixed = list(map(fix, items))
        return items if all(map(is_, fixed, items)) else fixed

    return fix_items


def _values(fix: _Fix | None) -> _Fix | None:
    if fix is None:
        return None

    def fix_values(value: Any) -> Any:
        if type(value) is not dict:
            return value
        members = cast("dict[Any, Any]", value)
        fixed = list(map(fix, members.values()))
        return members if all(map(is_, fixed, members.values())) else dict(zip(members, fixed, strict=True))

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
    by_name: list[tuple[str, _Fix]] = []
    by_position: list[_Fix | None] = []
    array: list[_Fix] = []

    def fix_fields(value: Any) -> Any:
        if type(value) is not dict:
            return array[0](value) if array else value
        members = fixed = cast("dict[str, Any]", value)
        for name, fix in by_name:
            item = members.get(name)
            if (new := fix(item)) is not item:
                if fixed is members:
                    fixed = members.copy()
                fixed[name] = new
        return fixed

    known[id(info)] = fix_fields  # before its fields, which may hold the class itself
    if (tag := getattr(info, "tag", None)) is not None:
        by_name += [(info.tag_field, _whole)] if type(tag) is int else []
        by_position.append(_whole)
    for field in info.fields:
        fix = _fix(field.type, known)
        by_position.append(fix)
        if fix is not None:
            by_name.append((field.encode_name, fix))
    if (fix := _positions(by_position)) is not None:  # for NamedTuples, and Structs declared so: arrays
        array.append(fix)
    return fix_fields
