"""Inspected types: the types that an annotation is made of, examined once, where a function is declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from msgspec import inspect as kinds

_KEYS = (
    kinds.AnyType,
    kinds.StrType,
    kinds.IntType,
    kinds.FloatType,
    kinds.EnumType,
    kinds.LiteralType,
    kinds.DateType,
    kinds.DateTimeType,
    kinds.TimeType,
    kinds.TimeDeltaType,
    kinds.UUIDType,
    kinds.DecimalType,
    kinds.BytesType,
)
"""Types that the key of a JSON object, which is a string, can be read as."""


_SALTED = (
    kinds.StrType,
    kinds.BytesType,
    kinds.DateType,
    kinds.DateTimeType,
    kinds.TimeType,
    kinds.EnumType,
    kinds.LiteralType,
    kinds.BoolType,
    kinds.NoneType,
)
"""Types with hashes that no peer can foresee, or with few values."""

_MOST_NUMBERS: Final = 100_000
_MOST_OTHERS: Final = 5_000


def _types_in(annotation: Any) -> list[kinds.Type]:
    """Return all types that ``annotation`` is made of, the fields of its classes included. Raises `NameError` for a
    name that cannot be resolved, and `TypeError`."""
    found: dict[int, kinds.Type] = {}
    ahead = [kinds.type_info(annotation)]
    while ahead:
        kind = ahead.pop()
        if id(kind) not in found:  # a class may be made of itself
            found[id(kind)] = kind
            ahead += _inside(kind)
    return list(found.values())


def _inside(kind: kinds.Type) -> Iterator[kinds.Type]:
    for name in kind.__struct_fields__:
        member: Any = getattr(kind, name)
        for each in cast("tuple[Any, ...]", member) if isinstance(member, tuple) else (member,):
            if isinstance(each, kinds.Field):
                yield each.type
            elif isinstance(each, kinds.Type):
                yield each


def needs_options(annotation: Any) -> bool:
    """Return whether ``annotation`` holds a class that msgspec does not know, or a dict with keys that are no
    strings."""
    return any(
        isinstance(kind, kinds.CustomType)
        or (isinstance(kind, kinds.DictType) and not isinstance(kind.key_type, kinds.StrType | kinds.AnyType))
        for kind in _types_in(annotation)
    )


def check_keys(annotation: Any) -> None:
    """Raise `TypeError` for a dict in ``annotation`` with keys that cannot be read from the strings of JSON."""
    for kind in _types_in(annotation):
        if isinstance(kind, kinds.DictType):
            key = kind.key_type
            for one in key.types if isinstance(key, kinds.UnionType) else (key,):
                if not isinstance(one, _KEYS):
                    name = type(one).__name__.removesuffix("Type").lower()
                    raise TypeError(f"the keys of a JSON object are strings, and none is read as {name}: dict[str, …]")


def classes_in(annotation: Any) -> set[Any]:
    """Return the classes with fields that ``annotation`` is made of."""
    return {getattr(kind, "cls", None) for kind in _types_in(annotation)} - {None}


def most_hashed(annotation: Any) -> int | None:
    """Return how many items and members a value of ``annotation`` may have (as `is_checkable` counts), so that its
    sets and dicts are made in bounded time; `None` for any number.

    Python salts the hashes of text alone. For all other types a peer can send values with the same hash, so that each
    item is compared with all earlier items. Integers of up to 64 bits, which hardly collide, are cheap.
    """
    hashed: list[kinds.Type] = []
    keys: list[kinds.Type] = []
    for kind in _types_in(annotation):
        if isinstance(kind, kinds.SetType | kinds.FrozenSetType):
            hashed += _members_of(kind.item_type)
        elif isinstance(kind, kinds.DictType) and not isinstance(kind.key_type, kinds.AnyType):  # keys of Any are text
            keys += _members_of(kind.key_type)
    if all(isinstance(kind, _SALTED) for kind in (*hashed, *keys)):
        return None
    if all(isinstance(kind, (*_SALTED, kinds.IntType, kinds.FloatType)) for kind in hashed) and all(
        isinstance(kind, _SALTED) for kind in keys
    ):
        return _MOST_NUMBERS
    return _MOST_OTHERS


def _members_of(kind: kinds.Type) -> tuple[kinds.Type, ...]:
    return kind.types if isinstance(kind, kinds.UnionType) else (kind,)
