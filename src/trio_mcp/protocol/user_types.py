"""Makes JSON Schemas from Python types of the user, and parses JSON data as these types, such as dataclasses and
TypedDicts.

Schemas are for values that are parsed or encoded. Allowed values keep the author's order.

msgspec reads data strictly: JSON types are never coerced. One exception: 3.0 is a valid integer in JSON Schema (2020-12
validation, 6.1.1), but not in msgspec, so it is converted first. A peer decides how much data must be searched for such
numbers. So the data is searched only once, guided by the schema, and only if that may help and it isn't too large.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from enum import Flag
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints, is_typeddict

import attrs
import msgspec
from msgspec import inspect as kinds

from ..jsonrpc.sizes import MOST_LEVELS, is_small
from .fields import JSONObject
from .foreign_types import Adapter, read_foreign, readable, schema_of_foreign
from .inlining import inlined, portable, schemas_in

T = TypeVar("T")


def schema_of(kind: Any, *, read: bool = True, encoders: Any = None) -> JSONObject:
    """Return the JSON Schema of a type.

    ``read`` is true for values that are parsed, and false for values that are encoded. ``encoders`` are the `Encoders`
    of a server. The root is never a reference, and references are replaced if possible (`inlined`). Raises `TypeError`
    for a type without a schema.
    """
    inner: JSONObject = {}
    prefix = ""

    def part(kind: Any) -> JSONObject:
        schema = schema_of(kind, read=read, encoders=encoders)
        inner.update(schema.pop("$defs", {}))
        return schema

    def foreign(kind: Any) -> JSONObject:
        if encoders is not None and (returned := encoders.returned(kind)) is not None:
            schema = part(returned)
        elif issubclass(kind, Adapter):
            schema = kind.schema(part)
        else:
            schema = _with_definitions(kind, read, prefix, inner)
        return schema or {"description": kind.__name__}  # never return {}, which msgspec treats as no schema

    try:
        infos: Any = [info for info in types_in(kind, adapted=False) if not isinstance(info, kinds.CustomType)]
        defined = {info.cls: info for info in infos if hasattr(info, "cls")}
        options: Any = {"schema_hook": foreign, "ref_template": "#/$defs/{name}"}
        (root, *references), definitions = msgspec.json.schema_components([kind, *defined], **options)
        # If a pydantic model and another class have the same name, put "models." before the models' names.
        if not inner.keys().isdisjoint(definitions):
            inner.clear()
            prefix = "models."
            (root, *references), definitions = msgspec.json.schema_components([kind, *defined], **options)
    except NameError as error:
        raise TypeError(f"an annotation could not be resolved: {error}") from None
    for info, reference in zip(defined.values(), references, strict=True):
        hints = hints_of(get_origin(info.cls) or info.cls)
        _complete(definitions[reference["$ref"].rpartition("/")[2]], info, hints, read=read)
    _put_in_order(root, kind)
    definitions |= inner
    root = inlined({**root, "$defs": definitions}) if definitions else root
    if (reference := root.pop("$ref", None)) is not None:  # to a recursive class
        root = {**root["$defs"][reference.rpartition("/")[2]], **root}
    for node in schemas_in(root) if not read else ():
        if node.get("format") in _UNSURE:
            del node["format"]
    return portable(root)


_UNSURE: Final = ("date-time", "time", "duration")
"""RFC 3339 formats that a written value may not match, because the value has no time zone, or a fraction of a
second."""


def _with_definitions(kind: type, read: bool, prefix: str, known: JSONObject) -> JSONObject:
    """Return the schema of a class that msgspec doesn't know, after moving its ``$defs`` to ``known``.

    A definition whose name is already used for something else is renamed.
    """
    schema = schema_of_foreign(kind, read=read, prefix=prefix)
    new = {prefix + name: each for name, each in schema.pop("$defs", {}).items()}
    if any(known.get(name, each) != each for name, each in new.items()):
        return _with_definitions(kind, read, f"{prefix}{len(known)}.", known)
    known.update(new)
    return schema


def _complete(schema: JSONObject, info: Any, hints: dict[str, Any], *, read: bool) -> None:
    """Correct the ``schema`` that msgspec made for the class of ``info``.

    If ``read`` is true, it describes values that are parsed, otherwise values that are encoded. ``hints`` are the
    annotations of the class, keyed by field name.
    """
    if not hasattr(info, "fields"):
        schema["enum"] = list(dict.fromkeys(member.value for member in info.cls.__members__.values()))
        if not read and issubclass(info.cls, Flag):  # a combination of flags isn't among the values of the enum
            schema["type"] = "integer"
            del schema["enum"]
        return
    properties: JSONObject = schema.get("properties", {})
    for field in info.fields:
        name = field.encode_name
        if not read and name.startswith("_") and attrs.has(get_origin(info.cls) or info.cls):  # omitted from results
            del properties[name]
            schema["required"] = [each for each in schema["required"] if each != name]
        else:
            _put_in_order(properties.get(name, schema), hints.get(field.name), info.cls)


def _put_in_order(schema: JSONObject, *hints: Any) -> None:
    """Sort the values of each ``enum`` in ``schema`` in the author's order, because msgspec sorts the values of a
    `Literal`."""
    order: dict[Any, int] = {}
    seen = list(hints)
    for hint in seen:  # each annotation is added only once, so the loop ends although ``seen`` grows
        if get_origin(hint) is Literal:
            for value in get_args(hint):
                order.setdefault((cast("Any", type(value)), value), len(order))
        else:
            others = (*get_args(hint), getattr(hint, "__value__", None), getattr(hint, "__supertype__", None))
            seen += [each for each in others if not any(each is known for known in seen)]
    for node in schemas_in(schema) if order else ():
        values: list[Any] = node.get("enum", [])
        if all((type(value), value) in order for value in values):
            values.sort(key=lambda value: order[type(value), value])


def types_in(annotation: Any, *, adapted: bool = True) -> list[kinds.Type]:
    """Return all types that occur in ``annotation``, including the types of the fields of its classes.

    With ``adapted``, include the parts of adapters. Raises `TypeError`, or `NameError` for a name that can't be
    resolved.
    """
    found: dict[int, kinds.Type] = {}
    ahead = [kinds.type_info(annotation)]
    while ahead:
        kind = ahead.pop()
        if id(kind) not in found:  # skip types that were already found, because a class may be recursive
            found[id(kind)] = kind
            ahead += inside(kind) if adapted or not isinstance(kind, kinds.CustomType) else ()
    return list(found.values())


def inside(kind: kinds.Type) -> Iterator[kinds.Type]:
    """Yield the types that are direct parts of ``kind``."""
    if isinstance(kind, kinds.CustomType) and issubclass(kind.cls, Adapter):
        yield from kind.cls.infos()
    for name in kind.__struct_fields__:
        member: Any = getattr(kind, name)
        for each in cast("tuple[Any, ...]", member) if isinstance(member, tuple) else (member,):
            if isinstance(each, kinds.Field):
                yield each.type
            elif isinstance(each, kinds.Type):
                yield each


def hints_of(kind: type[Any]) -> dict[str, Any]:
    """Return the type annotations of a class, keyed by field name."""
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError:  # reported by `schema_of`
        return {}


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
    try:
        return schema_of(kind)
    except TypeError:  # the type, such as a custom class, has no JSON Schema
        return {}
