"""Field definitions for the classes of the specification: each field has a first and a last protocol revision."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Final, Literal, TypeAlias, Union, cast, get_args, get_origin

import attrs

from ..class_init import Field

JSONObject: TypeAlias = dict[str, Any]
"""Type of a JSON object that is kept unchanged."""


def as_object(value: object) -> JSONObject:
    """Return ``value`` if it is a JSON object. Otherwise return an empty object."""
    return cast("JSONObject", value) if isinstance(value, dict) else {}


_TYPES: Final = {bool: "boolean", dict: "object", float: "number", int: "integer", list: "array", str: "string"}
JSON_TYPES: Final = frozenset(("null", *_TYPES.values()))
"""The names of types in JSON Schema."""
_SINCE: Final = "trio_mcp.since"
_UNTIL: Final = "trio_mcp.until"


def json_type(value: Any) -> str:
    """Return the name of the JSON type of a value, one of `JSON_TYPES`.

    Return an empty string if the value isn't JSON data.
    """
    return "null" if value is None else _TYPES.get(cast("Any", type(value)), "")


def hint_parts(hint: Any) -> Iterator[Any]:
    """Yield a type annotation and, recursively, its type arguments and its metadata."""
    yield hint
    for part in () if get_origin(hint) is Literal else get_args(hint):
        yield from hint_parts(part)


def union_parts(kind: Any) -> tuple[Any, ...]:
    """Return the types in a union type. For any other type, return an empty tuple."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else ()


def since(revision: str, *, until: str | None = None, default: Any = None) -> Any:
    """Return an attrs field that exists in the protocol revisions from ``revision`` to ``until``, both included.

    Converters of other revisions omit the field. The field always has a default, because older peers never send it.
    """
    return attrs.field(default=default, metadata={_SINCE: revision, _UNTIL: until})


def local() -> Any:
    """Return an attrs field that exists only in memory and is never sent.

    Because of `OPEN` in ``readers.py``, it is never parsed from received data either.
    """
    return attrs.field(default=None, metadata={_SINCE: "never"})


def history_of(field: attrs.Attribute[Any] | Field) -> tuple[str | None, str | None]:
    """Return the first and the last protocol revision that have ``field``. `None` means no limit."""
    return cast("tuple[str | None, str | None]", (field.metadata.get(_SINCE), field.metadata.get(_UNTIL)))


def is_in_revision(field: attrs.Attribute[Any] | Field, revision: str) -> bool:
    """Return true if the protocol revision ``revision`` has ``field``."""
    first, last = history_of(field)
    return (first is None or first <= revision) and (last is None or revision <= last)


def wire_name(name: str) -> str:
    """Return the JSON name of a Python attribute: its name in camelCase, or ``_meta`` for ``meta``."""
    if name == "meta":
        return "_meta"
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)
