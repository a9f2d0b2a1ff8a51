"""Plain classes: JSON data as the classes that authors write, dataclasses, TypedDicts and the like.

msgspec does the work, strictly: JSON types are never coerced, except that 3.0 is an integer where a type asks for one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar, cast, is_typeddict

import msgspec
from msgspec import inspect

from .whole_numbers import with_whole_numbers

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
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        whole = with_whole_numbers(data, kind, error)
        if whole is data:
            raise
    return msgspec.convert(whole, kind)


def optional_fields(kind: Any) -> Iterator[str]:
    """Yield the names, as on the wire, of the fields of a class that may be `None` and have no default."""
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
