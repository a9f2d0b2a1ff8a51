"""Parses JSON data as plain classes of the user, such as dataclasses and TypedDicts.

msgspec reads them strictly: JSON types are never coerced. One exception: 3.0 is a valid integer in JSON Schema (2020-12
validation, 6.1.1), but not in msgspec, so it is converted first. A peer decides how much data must be searched for such
numbers. So the data is searched only once, guided by the schema, and only if that may help and it isn't too large.
"""

from __future__ import annotations

import dataclasses
import sys
from functools import lru_cache
from typing import Any, Final, TypeVar, cast, is_typeddict

import msgspec

from ..jsonrpc.sizes import MOST_LEVELS, is_small
from .fields import JSONObject
from .foreign_types import read_foreign, readable

T = TypeVar("T")


def is_plain_class(kind: Any) -> bool:
    """Return true if ``kind`` is a dataclass, TypedDict, NamedTuple or msgspec Struct."""
    if not isinstance(kind, type):
        return False
    is_named_tuple = tuple in kind.__mro__ and hasattr(kind, "_fields")
    is_struct = msgspec.Struct in kind.__mro__
    return is_named_tuple or is_struct or is_typeddict(kind) or dataclasses.is_dataclass(cast("Any", kind))


def convert(data: Any, kind: type[T]) -> T:
    """Parse JSON data as a value of the type ``kind``.

    Raises `ValueError` with the JSON path of the fault if the data is invalid.
    """
    kind = readable(kind)
    try:
        return msgspec.convert(data, kind, dec_hook=read_foreign)
    except msgspec.ValidationError as error:
        whole = with_whole_numbers(data, kind, error)
        if whole is data:
            raise
    return msgspec.convert(whole, kind, dec_hook=read_foreign)


def optional_fields(kind: Any) -> list[str]:
    """Return the JSON names of the fields of a class whose values may be `None`, but which have no default."""
    schema = _schema_of(readable(kind))
    fields = schema.get("properties", {})
    return [name for name in schema.get("required", ()) if {"type": "null"} in fields[name].get("anyOf", ())]


_MOST_PARTS: Final = 250_000
"""Maximum number of items and members of data that is searched for whole numbers."""


def with_whole_numbers(data: Any, kind: Any, fault: Exception) -> Any:
    """Return ``data`` with floats such as 3.0 converted to `int` wherever the type ``kind`` has an integer.

    ``fault`` is msgspec's error for ``data``. msgspec stops at the first fault, so converting floats can help only if
    it is about a float. ``data`` is never changed. The same object is returned if there is nothing to change, if there
    are more than 250,000 items and members (fewer if alternatives are tried), or if it is nested too deeply.
    """
    if "got `float`" not in str(fault) or not is_small(data, _MOST_PARTS, sys.maxsize, MOST_LEVELS):
        return data
    # Import this function only here, because few peers write integers as floats.
    from .schema_reading import read_whole_numbers

    return read_whole_numbers(_schema_of(kind), data)


@lru_cache(maxsize=256)
def _schema_of(kind: Any) -> JSONObject:
    from .type_schemas import schema_of  # import this function only here, because few clients need it

    try:
        return schema_of(kind)
    except TypeError:  # the type, such as a custom class, has no JSON Schema
        return {}
