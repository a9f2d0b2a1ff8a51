"""Converters: JSON data as objects of the specification, and objects as JSON data, per revision.

The conversion code of a class is generated at its first use; each message runs one generated function. `structuring`
reads; here objects are written in the form of one revision, derived from the history beside each field. `SHAPES` has
the few classes whose shape, not only their fields, differs between revisions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import cache, partial
from typing import Any, Final, TypeVar, cast

import attrs
import cattrs
from cattrs.gen import make_dict_unstructure_fn, override

from ..jsonrpc.errors import INVALID_PARAMS, CodedError, ProtocolViolation, clean
from ..jsonrpc.sizes import MOST_LEVELS, is_small
from .fields import is_said, wire_name
from .revisions import Revision
from .structuring import structurer
from .types.content import ResourceLink, ToolResultContent, ToolUseContent
from .types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, first_form
from .types.sampling import CreateMessageResult, SamplingMessage
from .types.tools import CallToolResult, Tool

T = TypeVar("T")

_PARTS: Final = 1000
_CHARACTERS: Final = 1_000_000


def structure(data: Any, kind: type[T]) -> T:
    """Make an object of ``kind`` from JSON data. Raises `ValueError` that names each fault and its place; for large
    data, only the first fault without its place."""
    try:
        return _hook_for(kind)(data, kind)
    except (KeyError, TypeError, ValueError) as error:
        if not is_small(data, _PARTS, _CHARACTERS, MOST_LEVELS):
            raise ValueError(clean(_in_words(error, None))) from None
        try:  # once more, by the converter that tells places; it collects all faults, with a traceback each
            return _detailed().structure(data, kind)
        except (TypeError, ValueError, cattrs.BaseValidationError) as error:
            faults = cattrs.transform_error(error, format_exception=_in_words)
            raise ValueError(clean("; ".join(map(_on_the_wire, faults)))) from None


def structure_result(method: str, result: Any, kind: type[T]) -> T:
    """Make an object of ``kind`` from the result of a request of ``method``. Faults raise `ProtocolViolation`."""
    try:
        return structure(result, kind)
    except ValueError as error:
        raise ProtocolViolation(f"the result of {method} makes no sense: {error}") from None


def structure_params(data: Any, kind: type[T], revision: Revision) -> T:
    """Make an object of ``kind`` from parameters of the wire. Faults raise `CodedError` -32602, except that members
    unknown to ``revision`` are ignored."""
    members: Any = {} if data is None else data
    try:
        return _hook_for(kind)(members, kind)
    except (KeyError, TypeError, ValueError):
        with suppress(KeyError, TypeError, ValueError):
            return _hook_for(kind, revision)(members, kind)
    try:
        return structure(members, kind)
    except ValueError as error:
        raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None


def unstructure(value: Any, revision: Revision) -> Any:
    """Return an object as plain data in the form of ``revision``. Raises `NotExpressible`."""
    return _unhook_for(revision, cast("Any", type(value)))(value)


def _in_words(error: BaseException, _: type | None) -> str:
    return f"missing {wire_name(error.args[0])!r}" if isinstance(error, KeyError) else str(error)


def _on_the_wire(fault: str) -> str:
    """Return the same fault with its place in names of the wire: ``$.maxTokens``, not ``$.max_tokens``."""
    words, at, place = fault.rpartition(" @ ")
    return words + at + re.sub(r"\['.*?'\]|\.(\w+)", lambda m: f".{wire_name(m[1])}" if m[1] else m[0], place)


@cache
def _unhook_for(revision: Revision, kind: type) -> Callable[[Any], Any]:
    return converter_for(revision).get_unstructure_hook(kind)


@cache
def _hook_for(kind: Any, revision: Revision | None = None) -> Callable[[Any, Any], Any]:
    return _fast(revision).get_structure_hook(kind)


@cache
def _fast(revision: Revision | None) -> cattrs.Converter:
    return structurer(cattrs.Converter(detailed_validation=False), revision)


@cache
def _detailed() -> cattrs.Converter:
    return structurer(cattrs.Converter(detailed_validation=True))


@cache
def converter_for(revision: Revision) -> cattrs.Converter:
    converter = cattrs.Converter()
    converter.register_unstructure_hook(Enum, lambda member: member.value)
    converter.register_unstructure_hook_func(lambda kind: kind == dict[str, Any], lambda value: value)
    converter.register_unstructure_hook_factory(attrs.has, partial(_class, revision))
    return converter


def _class(revision: Revision, kind: Any, converter: cattrs.Converter) -> Callable[[Any], Any]:
    if kind is ResourceLink and revision.structured_content == "none":
        # Links came with 2025-06-18, together with structured content; before, the URI goes as text.
        return lambda link: {"type": "text", "text": link.uri}
    first = getattr(kind, "SINCE", revision.name)
    if first > revision.name:
        defaults = {field.name: field.default for field in attrs.fields(kind)}
        what = f"an elicitation of mode {defaults['mode']!r}" if "mode" in defaults else None
        what = what or f"content of type {defaults['type']!r}"
        return partial(_refuse, f"{what} cannot be said in revision {revision}; it came with {first}")
    make = make_dict_unstructure_fn(kind, converter, **_overrides(kind, revision))  # pyright: ignore[reportArgumentType]
    if kind not in SHAPES:
        return make
    has_shape, shape = SHAPES[kind]
    return (lambda value: shape(make, value, revision)) if has_shape(revision) else make


def _overrides(kind: Any, revision: Revision) -> dict[str, Any]:
    attrs.resolve_types(kind)
    return {
        field.name: override(rename=wire_name(field.name), omit_if_default=field.default is None)
        if is_said(field, revision.name)
        else override(omit=True)
        for field in attrs.fields(kind)
    }


def _refuse(reason: str, _: Any) -> Any:
    raise NotExpressible(reason)


class NotExpressible(ValueError):
    """A value that the revision of this request cannot express, audio in 2024-11-05 for example."""


Make = Callable[[Any], dict[str, Any]]


def _tool(make: Make, tool: Tool, _: Revision) -> dict[str, Any]:
    data = make(tool)
    if (tool.output_schema or {}).get("type") != "object":
        data.pop("outputSchema", None)
    return data


def _call_result(make: Make, result: CallToolResult | ToolResultContent, _: Revision) -> dict[str, Any]:
    data = make(result)
    if not isinstance(result.structured_content, dict):
        data.pop("structuredContent", None)
    return data


def _message(make: Make, message: Any, revision: Revision) -> dict[str, Any]:
    content = message.content
    if _has_tool_use(revision) or not isinstance(content, list):
        return make(message)
    if len(cast("list[Any]", content)) != 1:
        raise NotExpressible(f"a message holds exactly one content block in revision {revision}")
    return make(attrs.evolve(message, content=content[0]))


def _sampled(make: Make, result: CreateMessageResult, revision: Revision) -> dict[str, Any]:
    data = _message(make, result, revision)
    extra = data.pop("extra")
    return {**extra, **data}


def _elicit_form(make: Make, params: ElicitFormParams, revision: Revision) -> dict[str, Any]:
    try:
        form = first_form(params.requested_schema)
    except ValueError as error:
        raise NotExpressible(f"{error}; this is revision {revision}") from None
    return make(attrs.evolve(params, requested_schema=form))


def _elicit_url(make: Make, params: ElicitURLParams, revision: Revision) -> dict[str, Any]:
    if params.elicitation_id is None:
        raise NotExpressible(f"a URL elicitation needs an elicitation id in revision {revision}")
    return make(params)


def _elicit_result(make: Make, result: ElicitResult, revision: Revision) -> dict[str, Any]:
    for name, value in (result.content or {}).items():
        if isinstance(value, list):
            raise NotExpressible(f"field {name!r} is a list, which revision {revision} has no form for")
    return make(result)


def _wants_objects(revision: Revision) -> bool:
    """Return whether structured content, and the root of an output schema, is an object: until 2025-11-25."""
    return revision.structured_content != "any"


def _has_tool_use(revision: Revision) -> bool:
    """Return whether messages may have several blocks: since tools can be used."""
    return revision.name >= ToolUseContent.SINCE


def _lacks_urls(revision: Revision) -> bool:
    return revision.name < ElicitURLParams.SINCE


SHAPES: Final[dict[Any, tuple[Callable[[Revision], bool], Callable[[Make, Any, Revision], dict[str, Any]]]]] = {
    Tool: (_wants_objects, _tool),
    CallToolResult: (_wants_objects, _call_result),
    ToolResultContent: (_wants_objects, _call_result),
    SamplingMessage: (lambda revision: not _has_tool_use(revision), _message),
    CreateMessageResult: (lambda _: True, _sampled),
    ElicitFormParams: (_lacks_urls, _elicit_form),
    ElicitURLParams: (lambda revision: "notifications/elicitation/complete" in revision.methods, _elicit_url),
    ElicitResult: (_lacks_urls, _elicit_result),
}
"""The shapes of classes, each with the revisions that have it."""
