"""One cattrs converter per revision, derived from the history beside each field.

Structuring is the same for all revisions and strict: JSON types are never coerced. Unstructuring leaves out
what a revision cannot say, and raises `NotExpressible` for a value it cannot express at all. What is paid per
class is paid at its first use; per message there is one generated function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin

import attrs
import cattrs
from cattrs.cols import list_structure_factory
from cattrs.cols import mapping_structure_factory as _mapping_factory  # pyright: ignore[reportUnknownVariableType] untyped there
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from .content import (
    BlobResourceContents,
    ResourceContents,
    ResourceLink,
    TextResourceContents,
    ToolResultContent,
    ToolUseContent,
)
from .elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, content_fits, first_form
from .fields import history_of, wire_name
from .log_levels import LogLevel, log_level_rank
from .revisions import Revision
from .sampling import CreateMessageResult, SamplingMessage
from .tools import CallToolResult, Tool

__all__ = ["NotExpressible", "structure", "structure_params", "unstructure"]

T = TypeVar("T")


class NotExpressible(ValueError):
    """A value that the revision of this request has no words for, audio in 2024-11-05 for example."""


def structure(data: Any, kind: type[T]) -> T:
    """JSON data to an object of ``kind``. Raises `ValueError` with one line per fault, naming its place."""
    try:
        return _fast().structure(data, kind)
    except (KeyError, TypeError, ValueError):  # any fault: done again by the converter that says where
        try:
            return _detailed().structure(data, kind)
        except (TypeError, ValueError, cattrs.BaseValidationError) as error:
            faults = cattrs.transform_error(error, format_exception=_in_words)
            raise ValueError("; ".join(map(_on_the_wire, faults))) from None


def structure_params(data: Any, kind: type[T]) -> T:
    """As `structure`, for parameters from the wire: faults raise `CodedError` -32602."""
    try:
        return structure({} if data is None else data, kind)
    except ValueError as error:
        raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None


def unstructure(value: Any, revision: Revision) -> Any:
    """An object to plain data as ``revision`` says it. Raises `NotExpressible`."""
    return _for_revision(revision).unstructure(value)


def _in_words(error: BaseException, _: type | None) -> str:
    return f"missing {wire_name(error.args[0])!r}" if isinstance(error, KeyError) else str(error)


def _on_the_wire(fault: str) -> str:
    """The same fault with its place in names of the wire: ``$.maxTokens``, not ``$.max_tokens``."""
    words, at, place = fault.rpartition(" @ ")
    return words + at + re.sub(r"\['.*?'\]|\.(\w+)", lambda m: f".{wire_name(m[1])}" if m[1] else m[0], place)


# Structuring


@cache
def _fast() -> cattrs.Converter:
    return _structurer(cattrs.Converter(detailed_validation=False))


@cache
def _detailed() -> cattrs.Converter:
    return _structurer(cattrs.Converter(detailed_validation=True))


def _structurer(converter: cattrs.Converter) -> cattrs.Converter:
    for kind in (str, bool, int, float):
        converter.register_structure_hook(kind, _exactly(kind, _SCALARS[kind]))
    converter.register_structure_hook(LogLevel, _log_level)  # else it counts as the string it also is
    converter.register_structure_hook_factory(_is_plain_union, _plain_union)
    converter.register_structure_hook_func(lambda kind: kind == dict[str, Any], _structure_object)
    converter.register_structure_hook_factory(lambda kind: get_origin(kind) is list, _list_factory(converter))
    converter.register_structure_hook_factory(
        lambda kind: get_origin(kind) is dict and kind != dict[str, Any], _dict_factory(converter)
    )
    converter.register_structure_hook_factory(lambda kind: get_origin(kind) is Literal, _one_of)
    converter.register_structure_hook_factory(_is_tagged_union, _tagged_union_factory(converter))
    converter.register_structure_hook_factory(attrs.has, _class_factory(converter))
    converter.register_structure_hook(ElicitFormParams | ElicitURLParams, _elicit_params(converter))
    converter.register_structure_hook(ResourceContents, _resource_contents(converter))
    return converter


def _exactly(kind: type, words: str) -> Callable[[Any, Any], Any]:
    def check(value: Any, _: Any) -> Any:
        # bool is an int to Python, not to JSON; an integer is a number to both.
        if type(value) is kind or (kind is float and type(value) is int):
            return value
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
    """A union of what is kept as it came: scalars and whole objects."""
    members = _members(kind)
    return bool(members) and all(member in _SCALARS or member == dict[str, Any] for member in members)


def _plain_union(kind: Any) -> Callable[[Any, Any], Any]:
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


def _one_of(kind: Any) -> Callable[[Any, Any], Any]:
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


def _list_factory(converter: cattrs.Converter) -> Callable[[Any], Callable[[Any, Any], Any]]:
    def factory(kind: Any) -> Callable[[Any, Any], Any]:
        (item_kind,) = get_args(kind)
        make = list_structure_factory(kind, converter)

        def structure_list(value: Any, kind: Any) -> Any:
            if type(value) is not list:
                raise TypeError(f"expected a list of {getattr(item_kind, '__name__', 'items')}")
            return make(value, kind)

        return structure_list

    return factory


def _dict_factory(converter: cattrs.Converter) -> Callable[[Any], Callable[[Any, Any], Any]]:
    def factory(kind: Any) -> Callable[[Any, Any], Any]:
        make: Callable[[Any, Any], Any] = _mapping_factory(kind, converter)

        def structure_dict(value: Any, kind: Any) -> Any:
            return make(_structure_object(value, kind), kind)

        return structure_dict

    return factory


def _tag_of(kind: Any) -> str | None:
    """The value of a class's ``type`` discriminator."""
    if not attrs.has(kind):
        return None
    attrs.resolve_types(kind)
    field = attrs.fields_dict(kind).get("type")
    return get_args(field.type)[0] if field is not None and get_origin(field.type) is Literal else None


def _is_tagged_union(kind: Any) -> bool:
    return any(_tag_of(member) is not None for member in _members(kind) if get_origin(member) is not list)


def _tagged_union_factory(converter: cattrs.Converter) -> Callable[[Any], Callable[[Any, Any], Any]]:
    def factory(kind: Any) -> Callable[[Any, Any], Any]:
        by_tag = {tag: member for member in _members(kind) if (tag := _tag_of(member)) is not None}
        list_kind = next((member for member in _members(kind) if get_origin(member) is list), None)

        def structure_union(value: Any, _: Any) -> Any:
            if list_kind is not None and type(value) is list:
                return converter.structure(cast("Any", value), list_kind)
            members: dict[str, Any] = value
            if type(members) is not dict:
                raise TypeError("expected an object")
            tag = members.get("type")
            member = by_tag.get(tag) if isinstance(tag, str) else None
            if member is None:
                raise ValueError(f"expected one of {', '.join(by_tag)} as its type")
            return converter.structure(members, member)

        return structure_union

    return factory


def _class_factory(converter: cattrs.Converter) -> Callable[[Any], Callable[[Any, Any], Any]]:
    def factory(kind: Any) -> Callable[[Any, Any], Any]:
        renames = {field.name: override(rename=wire_name(field.name)) for field in attrs.fields(kind)}
        if kind is CreateMessageResult:
            renames["extra"] = override(omit=True)
        make: Callable[[Any, Any], Any] = make_dict_structure_fn(kind, converter, **renames)  # pyright: ignore[reportArgumentType]

        def structure_class(value: dict[str, Any], kind: Any) -> Any:
            if type(value) is not dict:
                raise TypeError("expected an object")
            return make(value, kind)

        if kind is CreateMessageResult:
            return _keeping_extras(structure_class)
        if kind is ElicitResult:
            return _checking_content(structure_class)
        return structure_class

    return factory


def _keeping_extras(structure_class: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    known = {wire_name(field.name) for field in attrs.fields(CreateMessageResult)} - {"extra"}

    def structure_result(value: Any, kind: Any) -> Any:
        result = structure_class(value, kind)
        return attrs.evolve(result, extra={name: member for name, member in value.items() if name not in known})

    return structure_result


def _checking_content(structure_class: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def structure_result(value: Any, kind: Any) -> Any:
        result = structure_class(value, kind)
        if result.content is not None and not content_fits(result.content):
            raise ValueError("the content of an elicitation holds strings, numbers, booleans and lists of strings")
        return result

    return structure_result


def _elicit_params(converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    def structure_params(value: Any, _: Any) -> Any:
        mode = cast("dict[str, Any]", value).get("mode", "form") if type(value) is dict else None
        if mode == "url":
            return converter.structure(value, ElicitURLParams)
        if mode == "form":
            return converter.structure(value, ElicitFormParams)
        raise ValueError("the mode must be form or url")

    return structure_params


def _resource_contents(converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    def structure_contents(value: Any, _: Any) -> Any:
        members = _structure_object(value, None)
        if "text" in members:
            return converter.structure(members, TextResourceContents)
        if "blob" in members:
            return converter.structure(members, BlobResourceContents)
        raise ValueError("expected text or blob")

    return structure_contents


# Unstructuring


@cache
def _for_revision(revision: Revision) -> cattrs.Converter:
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
            return _refuse(f"{kind.__name__} cannot be said in revision {revision}; it came with {first}")
        make = make_dict_unstructure_fn(kind, converter, **_overrides(kind, revision))  # pyright: ignore[reportArgumentType]
        return _SHAPES.get(kind, _as_is)(make, revision)

    return factory


def _overrides(kind: Any, revision: Revision) -> dict[str, Any]:
    attrs.resolve_types(kind)
    overrides: dict[str, Any] = {}
    for field in attrs.fields(kind):
        first, last = history_of(field)
        said = (first is None or first <= revision.name) and (last is None or revision.name <= last)
        if said:
            overrides[field.name] = override(rename=wire_name(field.name), omit_if_default=field.default is None)
        else:
            overrides[field.name] = override(omit=True)
    return overrides


def _refuse(reason: str) -> Callable[[Any], Any]:
    def refuse(_: Any) -> Any:
        raise NotExpressible(reason)

    return refuse


# The few classes whose shape, not only their fields, differs between revisions.

Make = Callable[[Any], dict[str, Any]]


def _as_is(make: Make, _: Revision) -> Make:
    return make


def _tool(make: Make, revision: Revision) -> Make:
    if revision.structured_content == "any":
        return make

    def unstructure_tool(tool: Tool) -> dict[str, Any]:
        data = make(tool)
        if (tool.output_schema or {}).get("type") != "object":
            data.pop("outputSchema", None)  # until 2025-11-25 its root is an object
        return data

    return unstructure_tool


def _call_result(make: Make, revision: Revision) -> Make:
    if revision.structured_content == "any":
        return make

    def unstructure_result(result: CallToolResult | ToolResultContent) -> dict[str, Any]:
        data = make(result)
        if not isinstance(result.structured_content, dict):
            data.pop("structuredContent", None)  # until 2025-11-25 it is an object
        return data

    return unstructure_result


def _message_content(make: Make, revision: Revision) -> Make:
    if revision.name >= ToolUseContent.SINCE:  # several blocks can be said since there are tools to use
        return make

    def unstructure_message(message: Any) -> dict[str, Any]:
        content = message.content
        if not isinstance(content, list):
            return make(message)
        if len(cast("list[Any]", content)) != 1:
            raise NotExpressible(f"a message holds exactly one content block in revision {revision}")
        return make(attrs.evolve(message, content=content[0]))

    return unstructure_message


def _with_extras(make: Make, revision: Revision) -> Make:
    inner = _message_content(make, revision)

    def unstructure_result(result: CreateMessageResult) -> dict[str, Any]:
        data = inner(result)
        extra = data.pop("extra")
        return {**extra, **data}

    return unstructure_result


def _elicit_form(make: Make, revision: Revision) -> Make:
    if revision.name >= ElicitURLParams.SINCE:
        return make

    def unstructure_form(params: ElicitFormParams) -> dict[str, Any]:
        try:
            form = first_form(params.requested_schema)
        except ValueError as error:
            raise NotExpressible(f"{error}; this is revision {revision}") from None
        return make(attrs.evolve(params, requested_schema=form))

    return unstructure_form


def _elicit_url(make: Make, revision: Revision) -> Make:
    if "notifications/elicitation/complete" not in revision.methods:
        return make

    def unstructure_url(params: ElicitURLParams) -> dict[str, Any]:
        if params.elicitation_id is None:
            raise NotExpressible(f"a URL elicitation has an elicitation_id in revision {revision}")
        return make(params)

    return unstructure_url


def _elicit_result(make: Make, revision: Revision) -> Make:
    if revision.name >= ElicitURLParams.SINCE:
        return make

    def unstructure_result(result: ElicitResult) -> dict[str, Any]:
        for name, value in (result.content or {}).items():
            if isinstance(value, list):
                raise NotExpressible(f"field {name!r} is a list, which revision {revision} has no form for")
        return make(result)

    return unstructure_result


_SHAPES: dict[Any, Callable[[Make, Revision], Make]] = {
    Tool: _tool,
    CallToolResult: _call_result,
    ToolResultContent: _call_result,
    SamplingMessage: _message_content,
    CreateMessageResult: _with_extras,
    ElicitFormParams: _elicit_form,
    ElicitURLParams: _elicit_url,
    ElicitResult: _elicit_result,
}
