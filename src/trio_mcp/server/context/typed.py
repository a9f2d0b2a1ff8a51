"""Typed: untrusted data of clients, as the classes that handlers want."""

from __future__ import annotations

from typing import Any, Final, TypeVar, get_args, is_typeddict

import attrs
import msgspec

from ... import protocol
from ...protocol.converters import structure
from ...protocol.plain_classes import convert

T = TypeVar("T")

_SPECIFICATION: Final = f"{protocol.__name__}."


def typed(data: Any, kind: type[T]) -> T:
    """Return JSON data as a ``kind``, strictly: members are named as on the wire in classes of the specification, and
    as the fields in all others. Raises `ValueError` when the data does not fit, and `TypeError` for a ``kind`` that no
    JSON data is."""
    try:
        return structure(data, kind) if _is_of_specification(kind) else convert(data, kind)
    except RecursionError:
        raise ValueError("the data is nested too deeply") from None


def typed_text(text: str, kind: type[T]) -> T:
    """Return a JSON text as `typed` does; for an empty text the default of ``kind``, else `ValueError`."""
    if text:
        try:
            data = msgspec.json.decode(text)
        except RecursionError:
            raise ValueError("the data is nested too deeply") from None
        return typed(data, kind)
    if is_typeddict(kind):  # calling a TypedDict gives a plain dict without checks
        return typed({}, kind)
    try:
        return kind()
    except TypeError as error:
        raise ValueError(f"there is nothing to be read, and no default: {error}") from None


def _is_of_specification(kind: Any) -> bool:
    """Return whether ``kind`` is a class of the specification, or a list or the like of such."""
    if isinstance(kind, type) and attrs.has(kind):
        return kind.__module__.startswith(_SPECIFICATION)
    return any(map(_is_of_specification, get_args(kind)))
