"""Unstructuring: objects of the specification as JSON data, in the form of one revision.

The form is derived from the history beside each field. `SHAPES` has the few classes whose shape, not only their fields,
differs between revisions.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final, cast

import attrs
import cattrs
from cattrs.gen import make_dict_unstructure_fn, override

from .fields import is_said, wire_name
from .revisions import Revision
from .types.content import ResourceLink, ToolResultContent, ToolUseContent, UnknownContent
from .types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, first_form
from .types.notifications import SubscriptionFilter
from .types.sampling import CreateMessageResult, SamplingMessage
from .types.tools import CallToolResult, Tool


def unstructure(value: Any, revision: Revision) -> Any:
    """Return an object as plain data in the form of ``revision``. Raises `NotExpressible`."""
    return _unhook_for(revision, cast("Any", type(value)))(value)


@cache
def _unhook_for(revision: Revision, kind: type) -> Callable[[Any], Any]:
    return converter_for(revision).get_unstructure_hook(kind)


@cache
def converter_for(revision: Revision) -> cattrs.Converter:
    converter = cattrs.Converter()
    converter.register_unstructure_hook(Enum, lambda member: member.value)
    converter.register_unstructure_hook_func(lambda kind: kind == dict[str, Any], lambda value: value)
    converter.register_unstructure_hook_factory(attrs.has, partial(_unstructure_class, revision))
    return converter


def _unstructure_class(revision: Revision, kind: Any, converter: cattrs.Converter) -> Callable[[Any], Any]:
    if kind is UnknownContent:
        return attrgetter("raw")
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
    if revision.name >= ToolUseContent.SINCE or not isinstance(content, list):
        return make(message)
    if len(cast("list[Any]", content)) != 1:
        raise NotExpressible(f"a message holds exactly one content block in revision {revision}")
    return make(attrs.evolve(message, content=content[0]))


def _sampled(make: Make, result: CreateMessageResult, revision: Revision) -> dict[str, Any]:
    data = _message(make, result, revision)
    extra = data.pop("extra")
    return {**extra, **data}


def _filter(make: Make, asked: SubscriptionFilter, _: Revision) -> dict[str, Any]:
    data = make(asked)
    names: list[str] = data.pop("extensions", None) or []
    return {**data, **dict.fromkeys(names, True)}


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


def _is_before(kind: Any) -> Callable[[Revision], bool]:
    return lambda revision: revision.name < kind.SINCE


SHAPES: Final[dict[Any, tuple[Callable[[Revision], bool], Callable[[Make, Any, Revision], dict[str, Any]]]]] = {
    Tool: (_wants_objects, _tool),
    CallToolResult: (_wants_objects, _call_result),
    ToolResultContent: (_wants_objects, _call_result),
    SamplingMessage: (_is_before(ToolUseContent), _message),
    CreateMessageResult: (lambda _: True, _sampled),
    SubscriptionFilter: (lambda _: True, _filter),
    ElicitFormParams: (_is_before(ElicitURLParams), _elicit_form),
    ElicitURLParams: (lambda revision: "notifications/elicitation/complete" in revision.methods, _elicit_url),
    ElicitResult: (_is_before(ElicitURLParams), _elicit_result),
}
"""The shapes of classes, each with the revisions that have it."""
