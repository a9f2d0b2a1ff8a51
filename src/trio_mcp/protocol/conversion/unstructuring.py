"""Unstructuring: objects as plain data in the form of one revision, derived from the history beside each field."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any

import attrs
import cattrs
from cattrs.gen import make_dict_unstructure_fn, override

from ..fields import is_said, wire_name
from ..revisions import Revision
from ..types.content import ResourceLink
from .shapes import SHAPES, NotExpressible, as_is


@cache
def converter_for(revision: Revision) -> cattrs.Converter:
    converter = cattrs.Converter()
    converter.register_unstructure_hook(Enum, lambda member: member.value)
    converter.register_unstructure_hook_func(lambda kind: kind == dict[str, Any], lambda value: value)
    converter.register_unstructure_hook_factory(attrs.has, _unstructure_factory(converter, revision))
    return converter


def _unstructure_factory(converter: cattrs.Converter, revision: Revision) -> Callable[[Any], Callable[[Any], Any]]:
    def factory(kind: Any) -> Callable[[Any], Any]:
        if kind is ResourceLink and revision.structured_content == "none":
            # Links came with 2025-06-18, together with structured content; before, the URI goes as text.
            return lambda link: {"type": "text", "text": link.uri}
        first = getattr(kind, "SINCE", revision.name)
        if first > revision.name:
            return _refuse(f"{_words(kind)} cannot be said in revision {revision}; it came with {first}")
        make = make_dict_unstructure_fn(kind, converter, **_overrides(kind, revision))  # pyright: ignore[reportArgumentType]
        return SHAPES.get(kind, as_is)(make, revision)

    return factory


def _overrides(kind: Any, revision: Revision) -> dict[str, Any]:
    attrs.resolve_types(kind)
    overrides: dict[str, Any] = {}
    for field in attrs.fields(kind):
        if is_said(field, revision.name):
            overrides[field.name] = override(rename=wire_name(field.name), omit_if_default=field.default is None)
        else:
            overrides[field.name] = override(omit=True)
    return overrides


def _words(kind: Any) -> str:
    """Return the words for a ``kind`` in an error that the peer may be told."""
    fields = attrs.fields_dict(kind)
    if "mode" in fields:
        return f"an elicitation of mode {fields['mode'].default!r}"
    return f"content of type {fields['type'].default!r}"


def _refuse(reason: str) -> Callable[[Any], Any]:
    def refuse(_: Any) -> Any:
        raise NotExpressible(reason)

    return refuse
