"""Portable schemas: a JSON Schema in the keywords that models and hosts accept.

Providers of models refuse an ``enum`` without a ``type``, and clients warn about formats that JSON Schema does not
define. Generators of schemas write both.
"""

from __future__ import annotations

import copy
from math import isfinite
from typing import Any, Final, TypeVar, cast

from .fields import JSONObject, json_type
from .inlining import schemas_in

T = TypeVar("T")

_FORMATS: Final = frozenset(
    ("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname")
) | {
    *("ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template"),
    *("json-pointer", "relative-json-pointer", "regex"),
}
"""The formats of JSON Schema (2020-12 validation, 7.3)."""
_ENCODINGS: Final = {"byte": "base64", "base64": "base64", "base64url": "base64url"}
"""Formats of other vocabularies that JSON Schema writes as ``contentEncoding``."""


def portable(schema: T) -> T:
    """Return ``schema`` in portable keywords; the same object if nothing changes.

    An ``enum`` or ``const`` gets the ``type`` of its values. Repeated values of an ``enum``, unknown formats, OpenAPI's
    ``discriminator``, infinite bounds and defaults, and conditions on names that no name can meet are left out.
    """
    if all(_fixed(node) == node for node in schemas_in(schema)):
        return schema
    made = copy.deepcopy(schema)
    for node in schemas_in(made):
        fixed = _fixed(node)
        node.clear()
        node.update(fixed)
    return made


def _fixed(node: JSONObject) -> JSONObject:
    """Return one schema in portable keywords. The schemas inside are not changed."""
    made = {
        key: value
        for key, value in node.items()
        if key != "discriminator" and not (isinstance(value, float) and not isfinite(value))  # JSON has no infinity
    }
    kind, names = made.get("format"), made.get("propertyNames")
    if isinstance(kind, str) and kind not in _FORMATS:
        del made["format"]
        made |= {"contentEncoding": _ENCODINGS[kind]} if kind in _ENCODINGS else {}
    if isinstance(names, dict) and _fixed(cast("JSONObject", names)).get("type", "string") != "string":
        del made["propertyNames"]  # names are text
    values: Any = [made["const"]] if "const" in made else made.get("enum")
    if not isinstance(values, list):
        return made
    choices = list({repr(each): each for each in cast("list[Any]", values)}.values())
    made |= {"enum": choices} if "enum" in made else {}
    by_type: dict[str, list[Any]] = {}
    for each in choices:
        by_type.setdefault(json_type(each), []).append(each)
    if "type" in made or "" in by_type or not by_type or (len(by_type) > 1 and "anyOf" in made):
        return made
    if len(by_type) == 1:
        return {"type": next(iter(by_type)), **made}
    del made["enum"]
    typed = [{"type": kind} | ({"enum": some} if some != [None] else {}) for kind, some in by_type.items()]
    return {**made, "anyOf": typed}
