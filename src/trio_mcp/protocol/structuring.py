"""Structuring: plain data as objects, strictly: JSON types are never coerced. The rules are the same for all revisions;
with a revision given, members unknown to the revision are ignored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeAlias, Union, cast, get_args, get_origin

import attrs
import cattrs
from cattrs.cols import list_structure_factory
from cattrs.cols import mapping_structure_factory as _mapping_factory  # pyright: ignore[reportUnknownVariableType] untyped there
from cattrs.gen import make_dict_structure_fn, override

from .fields import JSONObject, is_said, wire_name
from .plain_classes import convert, is_plain_class
from .revisions import Revision
from .types.content import BlobResourceContents, ResourceContents, TextResourceContents
from .types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, content_fits
from .types.lifecycle import with_good_hints
from .types.notifications import LogLevel, log_level_rank
from .types.sampling import CreateMessageResult
from .types.tools import Task

_Hook: TypeAlias = Callable[[Any, Any], Any]


def structurer(converter: cattrs.Converter, revision: Revision | None = None) -> cattrs.Converter:
    for kind in (str, bool, int, float):
        converter.register_structure_hook(kind, _exactly(kind, _SCALARS[kind]))
    converter.register_structure_hook(LogLevel, _log_level)  # otherwise it counts as a plain string
    converter.register_structure_hook_factory(_is_plain_union, _plain_union)
    converter.register_structure_hook_func(lambda kind: kind == dict[str, Any], _structure_object)
    converter.register_structure_hook_factory(lambda kind: get_origin(kind) is list, _list)
    converter.register_structure_hook_factory(lambda kind: get_origin(kind) is dict and kind != dict[str, Any], _dict)
    converter.register_structure_hook_factory(lambda kind: get_origin(kind) is Literal, _one_of)
    converter.register_structure_hook_factory(_is_tagged_union, _tagged_union)
    converter.register_structure_hook_factory(attrs.has, partial(_class, revision))
    converter.register_structure_hook_func(is_plain_class, convert)
    converter.register_structure_hook(ElicitFormParams | ElicitURLParams, partial(_elicit_params, converter))
    converter.register_structure_hook(ResourceContents, partial(_resource_contents, converter))
    return converter


def _exactly(kind: type, words: str) -> _Hook:
    def check(value: Any, _: Any) -> Any:
        # bool is an int to Python, not to JSON; an integer is a number to both.
        if type(value) is kind or (kind is float and type(value) is int):
            return value
        if kind is int and type(value) is float and value.is_integer():  # 2020-12 validation, 6.1.1: 3.0 is one
            return int(value)
        raise TypeError(f"expected {words}")

    return check


_SCALARS: Final[dict[Any, str]] = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    NoneType: "null",
}


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else ()


def _is_plain_union(kind: Any) -> bool:
    """Return whether ``kind`` is a union of types whose values are kept unchanged: scalars and whole objects."""
    members = _members(kind)
    return bool(members) and all(member in _SCALARS or member == dict[str, Any] for member in members)


def _plain_union(kind: Any) -> _Hook:
    members = _members(kind)
    accepted = {dict if member == dict[str, Any] else member for member in members}
    if float in accepted:
        accepted.add(int)
    words = "an object" if dict in accepted else " or ".join(_SCALARS[member] for member in members)

    def check(value: Any, _: Any) -> Any:
        if type(value) in accepted:
            return value
        raise TypeError(f"expected {words}")

    return check


def _one_of(kind: Any) -> _Hook:
    allowed = get_args(kind)

    def check(value: Any, _: Any) -> Any:
        if type(value) is str and value in allowed:
            return value
        raise ValueError(f"expected one of {', '.join(allowed)}")

    return check


def _log_level(value: Any, _: Any) -> LogLevel:
    if type(value) is str and log_level_rank(value) >= 0:
        return LogLevel(value)
    raise ValueError(f"expected one of {', '.join(LogLevel)}")


def _structure_object(value: Any, _: Any) -> Any:
    if type(value) is dict:
        return cast("dict[str, Any]", value)
    raise TypeError("expected an object")


def _list(kind: Any, converter: cattrs.Converter) -> _Hook:
    (item_kind,) = get_args(kind)
    make = list_structure_factory(kind, converter)

    def structure_list(value: Any, kind: Any) -> Any:
        if type(value) is not list:
            raise TypeError(f"expected a list of {getattr(item_kind, '__name__', 'items')}")
        return make(value, kind)

    return structure_list


def _dict(kind: Any, converter: cattrs.Converter) -> _Hook:
    make: _Hook = _mapping_factory(kind, converter)
    return lambda value, kind: make(_structure_object(value, kind), kind)


def _tag_of(kind: Any) -> str | None:
    """Return the value of a class's ``type`` discriminator, `None` where it has none."""
    if not attrs.has(kind):
        return None
    attrs.resolve_types(kind)
    field = attrs.fields_dict(kind).get("type")
    return get_args(field.type)[0] if field is not None and get_origin(field.type) is Literal else None


def _is_tagged_union(kind: Any) -> bool:
    return any(_tag_of(member) is not None for member in _members(kind) if get_origin(member) is not list)


def _tagged_union(kind: Any, converter: cattrs.Converter) -> _Hook:
    by_tag = {tag: member for member in _members(kind) if (tag := _tag_of(member)) is not None}
    list_kind = next((member for member in _members(kind) if get_origin(member) is list), None)
    hooks: dict[Any, _Hook] = {}

    def structure_union(value: Any, _: Any) -> Any:
        if type(value) is dict:
            members = cast("dict[str, Any]", value)
            tag = members.get("type")
            if type(tag) is not str or tag not in by_tag:
                raise ValueError(f"expected one of {', '.join(by_tag)} as its type")
            if tag not in hooks:  # not before the first of them: the members of a union may hold the union
                hooks[tag] = converter.get_structure_hook(by_tag[tag])
            return hooks[tag](members, by_tag[tag])
        if list_kind is not None and type(value) is list:
            return converter.structure(cast("Any", value), list_kind)
        raise TypeError("expected an object")

    return structure_union


def _class(revision: Revision | None, kind: Any, converter: cattrs.Converter) -> _Hook:
    renames = {
        field.name: override(
            rename=wire_name(field.name), omit=revision is not None and not is_said(field, revision.name)
        )
        for field in attrs.fields(kind)
    }
    if kind is CreateMessageResult:
        renames["extra"] = override(omit=True)
    make: _Hook = make_dict_structure_fn(kind, converter, **renames)  # pyright: ignore[reportArgumentType]

    def structure_class(value: dict[str, Any], kind: Any) -> Any:
        if type(value) is not dict:
            raise TypeError("expected an object")
        return make(value, kind)

    before = _BEFORE.get(kind, with_good_hints if "cache_scope" in renames else None)
    if before is not None:
        return lambda value, kind: structure_class(before(_structure_object(value, None)), kind)
    if (after := _AFTER.get(kind)) is not None:
        return lambda value, kind: after(structure_class(value, kind), value)
    return structure_class


_SAMPLED: Final = frozenset(wire_name(field.name) for field in attrs.fields(CreateMessageResult)) - {"extra"}
"""The members of a sampling's result that have a field of their own."""


def _with_extras(result: CreateMessageResult, value: JSONObject) -> CreateMessageResult:
    if value.keys() <= _SAMPLED:
        return result
    return attrs.evolve(result, extra={name: member for name, member in value.items() if name not in _SAMPLED})


def _checked(result: ElicitResult, _: JSONObject) -> ElicitResult:
    if result.content is not None and not content_fits(result.content):
        raise ValueError("the content of an elicitation holds strings, numbers, booleans and lists of strings")
    return result


_BEFORE: Final[dict[Any, Callable[[JSONObject], JSONObject]]] = {Task: lambda task: {"ttl": None, **task}}
"""Steps on the data before the object is made. The ``ttl`` of a task for ever is null (2025-11-25 tasks, Task), and
mcp 1.x leaves that out."""
_AFTER: Final[dict[Any, Callable[[Any, JSONObject], Any]]] = {CreateMessageResult: _with_extras, ElicitResult: _checked}
"""Steps on the object, and the data that the object was made of."""


def _elicit_params(converter: cattrs.Converter, value: Any, _: Any) -> Any:
    mode = cast("dict[str, Any]", value).get("mode", "form") if type(value) is dict else None
    if mode not in ("url", "form"):
        raise ValueError("the mode must be form or url")
    return converter.structure(value, ElicitURLParams if mode == "url" else ElicitFormParams)


def _resource_contents(converter: cattrs.Converter, value: Any, _: Any) -> Any:
    members = _structure_object(value, None)
    if "text" in members:
        return converter.structure(members, TextResourceContents)
    if "blob" in members:
        return converter.structure(members, BlobResourceContents)
    raise ValueError("expected text or blob")
