"""Typed: what clients bring back, untrusted, as the classes that handlers want it in."""

from __future__ import annotations

from typing import Any, TypeVar, get_args, is_typeddict

import attrs
import msgspec

from ..spec.converters import structure
from ..spec.plain_classes import convert

__all__ = ["typed", "typed_text"]

T = TypeVar("T")


def typed(data: Any, kind: type[T]) -> T:
    """Return JSON data as a ``kind``, strictly. Raises `ValueError` when it does not fit, and `TypeError` for a
    ``kind`` that no JSON data is."""
    try:
        return structure(data, kind) if _is_of_attrs(kind) else convert(data, kind)
    except RecursionError:
        raise ValueError("the data is nested too deeply") from None


def typed_text(text: str, kind: type[T]) -> T:
    """Return a JSON text as `typed` does; without any text what a ``kind`` is by default, else `ValueError`."""
    if text:
        try:
            data = msgspec.json.decode(text)
        except RecursionError:
            raise ValueError("the data is nested too deeply") from None
        return typed(data, kind)
    if is_typeddict(kind):  # which is a plain dict when it is called, whatever is required
        return typed({}, kind)
    try:
        return kind()
    except TypeError as error:
        raise ValueError(f"there is nothing to be read, and no default: {error}") from None


def _is_of_attrs(kind: Any) -> bool:
    """Return whether the classes of the specification, or others of attrs, are part of ``kind``."""
    return attrs.has(kind) or any(map(_is_of_attrs, get_args(kind)))
