"""Schemas of classes and enums as their author wrote them: values in their order, and the fields that are written."""

from __future__ import annotations

from enum import Flag
from typing import Any, Literal, cast, get_args, get_origin

import attrs

from ..protocol.fields import JSONObject
from ..protocol.inlining import schemas_in


def complete(schema: JSONObject, info: Any, hints: dict[str, Any], *, read: bool) -> None:
    """Change ``schema``, which msgspec made for the class of ``info``, to what is ``read`` or written.

    ``hints`` are the annotations of the class by the names of its fields.
    """
    if not hasattr(info, "fields"):
        schema["enum"] = list(dict.fromkeys(member.value for member in info.cls.__members__.values()))
        if not read and issubclass(info.cls, Flag):  # a combination is none of the values
            schema["type"] = "integer"
            del schema["enum"]
        return
    properties: JSONObject = schema.get("properties", {})
    for field in info.fields:
        name = field.encode_name
        if not read and name.startswith("_") and attrs.has(get_origin(info.cls) or info.cls):  # left out of results
            del properties[name]
            schema["required"] = [each for each in schema["required"] if each != name]
        else:
            put_in_order(properties.get(name, schema), hints.get(field.name), info.cls)


def put_in_order(schema: JSONObject, *hints: Any) -> None:
    """Change each ``enum`` of ``schema`` to the order of the `Literal` in ``hints``, which msgspec sorts."""
    order: dict[Any, int] = {}
    seen = list(hints)
    for hint in seen:  # grows, but not by an alias that is made of itself
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
