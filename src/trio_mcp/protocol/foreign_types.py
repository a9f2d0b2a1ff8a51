"""Support for values of classes that msgspec doesn't know, such as pydantic models: parsing, encoding, JSON Schemas.

A library is looked up among the modules that were already imported, and is never imported here: a class of the library
can come only from a file that has imported it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import islice
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, Final, cast

from ..jsonrpc.codec import plain_scalar
from ..jsonrpc.errors import NotSerializable
from .fields import JSONObject
from .type_adapters import Adapter, adapted


def _pydantic() -> Any:
    """Return the module `pydantic_models` if the program has imported pydantic 2 or later. Otherwise return `None`."""
    return _models() if "pydantic" in sys.modules else None


@cache
def _models() -> Any:
    try:
        from . import pydantic_models  # import the module only here, because it imports pydantic
    except ImportError:
        return None
    return pydantic_models


def is_model(kind: Any) -> bool:
    """Return true if only pydantic can parse and encode instances of the class ``kind``."""
    return (models := _pydantic()) is not None and models.knows(kind)


def readable(hint: Any) -> Any:
    """Return the annotation ``hint``, or a substitute for it that msgspec can parse.

    If pydantic must parse the annotation, or msgspec rejects it, return a substitute class (see `Adapter`), otherwise
    ``hint`` itself. Raises `TypeError` for an annotation that pydantic can't parse.
    """
    models = _pydantic()
    try:
        read = hint if models is None else models.readable(hint)
    except TypeError:
        if (read := adapted(hint)) is hint:
            raise
    return adapted(hint) if read is hint else read


def read_foreign(kind: type, value: Any) -> Any:
    """Parse JSON data as an instance of a class that msgspec doesn't know.

    Raises `TypeError` or `ValueError` for invalid data.
    """
    if (models := _pydantic()) is not None and models.knows(kind):
        return models.read(kind, value)
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if issubclass(kind, Adapter):
        return kind.read(value, read_foreign)
    raise TypeError(f"expected {kind.__name__}")


def write_foreign(value: Any, inner: Callable[[Any], Any] = lambda items: items) -> Any:
    """Convert a value to JSON data if msgspec doesn't know the class of the value.

    The value can be a path, number, string, pydantic model, numpy scalar or array, or another collection. ``inner``
    encodes the items of a collection. Raises `TypeError` for anything else.
    """
    if (models := _pydantic()) is not None and models.knows(type(value)):
        return models.write(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str | Real):
        return plain_scalar(value)
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return value.tolist()
    if isinstance(value, COLLECTIONS):
        return inner(collected(value))
    raise TypeError(_without_form(type(value)))


ITERATED: Final = (deque, range, MappingView, Iterator)
"""Classes whose values are written as JSON lists."""
COLLECTIONS: Final = (*ITERATED, AbstractSet, Mapping)
_MOST_ITEMS: Final = 1_000_000


def collected(value: Any) -> list[Any] | dict[Any, Any]:
    """Return the items of any collection or iterator as a list, and those of a mapping as a dict.

    Raises `NotSerializable` if there are too many items, because an iterator may be endless.
    """
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    items: list[Any] = list(islice(value, _MOST_ITEMS + 1))
    if len(items) > _MOST_ITEMS:
        raise NotSerializable(f"not serializable as JSON: {type(value).__name__} has more than {_MOST_ITEMS:,} items")
    return items


def schema_of_foreign(kind: type, *, read: bool, prefix: str = "") -> JSONObject:
    """Return the JSON Schema of a class that msgspec doesn't know.

    ``read`` is true for values that are parsed, and false for values that are encoded. See `schema_of_model` for
    ``prefix``. Raises `TypeError` if the class has no schema.
    """
    if issubclass(kind, PurePath):
        return {"type": "string"}
    if (models := _pydantic()) is not None and models.knows(kind):
        return models.schema_of_model(kind, "validation" if read else "serialization", prefix)
    if (schema := _written(kind)) is None:
        raise TypeError(_without_form(kind))
    if read:
        raise TypeError(f"{kind.__name__} can be a result, but not an argument: use a JSON type, such as list[float]")
    return schema


def _without_form(kind: Any) -> str:
    return (
        f"{kind.__name__} has no JSON form. Write a class of attrs, a dataclass or a TypedDict in its place; a result "
        f"may have an encoder, too: Server(..., encoders={{{kind.__name__}: function}})"
    )


def _written(kind: Any) -> JSONObject | None:
    if issubclass(kind, Integral):
        return {"type": "integer"}
    if issubclass(kind, Real):
        return {"type": "number"}
    if issubclass(kind, COLLECTIONS) or kind is Iterable:
        return {"type": "object" if issubclass(kind, Mapping) else "array"}
    if (numpy := sys.modules.get("numpy")) is not None:
        if issubclass(kind, numpy.bool_):
            return {"type": "boolean"}
        if issubclass(kind, numpy.ndarray):
            return {"type": "array", "items": {}}
    return None
