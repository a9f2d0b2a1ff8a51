"""Writers: functions that encode objects of the specification as JSON data for one protocol revision.

`Writers` derives the form from the history beside each field. `SHAPES` has the few classes of which not only the fields
differ between revisions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import NoneType
from typing import Any, Final, Literal, TypeAlias, cast, get_args, get_origin

import attrs

from .fields import fields_of, is_ours, union_parts, wire_name, writer_of
from .readers import is_plain
from .revisions import Revision
from .types.content import ResourceLink, ToolResultContent, ToolUseContent, UnknownContent
from .types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, first_form
from .types.notifications import LogLevel, SubscriptionFilter
from .types.sampling import CreateMessageResult, SamplingMessage
from .types.tools import CallToolResult, Tool

Write: TypeAlias = Callable[[Any], Any]


_SCALARS: Final = frozenset((str, bool, int, float, NoneType))


def _unchanged(value: Any) -> Any:
    return value


class Writers:
    """Creates functions that encode objects as JSON data, for one protocol revision. There is one function per type.

    If the declared type is a union or `Any`, the class of the value decides. Lists and objects are copied, except for a
    ``dict[str, Any]`` that a class keeps unchanged.
    """

    def __init__(self, revision: Revision) -> None:
        self._revision = revision
        self._known: dict[Any, Write] = {
            **dict.fromkeys((*_SCALARS, dict[str, Any]), _unchanged),
            LogLevel: attrgetter("value"),
            Any: self._any,
            dict: self._object,
            list: self._array,
        }

    def writer_of(self, kind: Any) -> Write:
        """Return the function that encodes values of the type ``kind`` as JSON data."""
        if (write := self._known.get(kind)) is None:
            write = self._known[kind] = self._made(kind)
        return write

    def _any(self, value: Any) -> Any:
        kind = cast("Any", type(value))
        return (self._known.get(kind) or self.writer_of(kind))(value)

    def _object(self, value: dict[Any, Any]) -> dict[Any, Any]:
        write = self._any
        return {
            key if type(key) is str else write(key): member if type(member) in _SCALARS else write(member)
            for key, member in value.items()
        }

    def _array(self, value: list[Any]) -> list[Any]:
        write = self._any
        return [item if type(item) in _SCALARS else write(item) for item in value]

    def _made(self, kind: Any) -> Write:
        origin = get_origin(kind)
        members = union_parts(kind)
        if is_ours(kind):
            return self._class(kind)
        if origin is Literal or is_plain(kind):
            return _unchanged
        if origin is list:
            write = self.writer_of(get_args(kind)[0])
            return list if write is _unchanged else lambda value: [write(item) for item in value]
        if origin is dict:
            write = self.writer_of(get_args(kind)[1])
            return dict if write is _unchanged else lambda value: {name: write(each) for name, each in value.items()}
        if len(members) == 2 and NoneType in members:
            write = self.writer_of(members[0] if members[1] is NoneType else members[1])
            return lambda value: None if value is None else write(value)
        return self._any if members else self._other(kind)

    def _other(self, kind: Any) -> Write:
        # Import cattrs only here, because only types of other packages need it.
        from .cattrs_converters import unstructurer

        return unstructurer(self._revision, self._class, refusal).get_unstructure_hook(kind)

    def _class(self, kind: Any) -> Write:
        if kind is UnknownContent:
            return attrgetter("raw")
        if kind is ResourceLink and self._revision.structured_content == "none":
            # Resource links exist since MCP 2025-06-18. For older revisions, send the link's URI as text.
            return lambda link: {"type": "text", "text": link.uri}
        if (refuse := refusal(kind, self._revision)) is not None:
            return refuse
        make: Make = writer_of(kind, self._revision.name, self.writer_of, _unchanged)
        names = [field.name for field in fields_of(kind)]
        if "next_cursor" in names:
            return partial(_page, make, names[0], self._revision)
        if kind not in SHAPES:
            return make
        has_shape, shape = SHAPES[kind]
        return (lambda value: shape(make, value, self._revision)) if has_shape(self._revision) else make


def refusal(kind: Any, revision: Revision) -> Write | None:
    """Return `None` if the protocol revision ``revision`` can express values of the class ``kind``. Otherwise return a
    function that raises `NotExpressible`."""
    first = getattr(kind, "_SINCE", revision.name)
    if first <= revision.name:
        return None
    defaults = {field.name: field.default for field in fields_of(kind)}
    what = f"an elicitation of mode {defaults['mode']!r}" if "mode" in defaults else None
    what = what or f"content of type {defaults['type']!r}"
    return partial(_refuse, f"revision {revision} can't express {what}; it needs {first} or later")


def _refuse(reason: str, _: Any) -> Any:
    raise NotExpressible(reason)


class NotExpressible(ValueError):
    """Raised if a value can't be expressed in the protocol revision of a request.

    For example, 2024-11-05 can't express audio.
    """


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
        raise NotExpressible(f"a sampling message must have exactly one content block in MCP revision {revision}")
    return make(attrs.evolve(message, content=content[0]))


def _sampled(make: Make, result: CreateMessageResult, revision: Revision) -> dict[str, Any]:
    data = _message(make, result, revision)
    extra = data.pop("extra")
    return {**extra, **data}


def _filter(make: Make, asked: SubscriptionFilter, _: Revision) -> dict[str, Any]:
    data = make(asked)
    names: list[str] = data.pop("extensions", None) or []
    return {**data, **dict.fromkeys(names, True)}


def _page(make: Make, field: str, revision: Revision, result: Any) -> dict[str, Any]:
    """Return one page of a list as JSON data.

    If the page is a `CachedPage`, its items are cached JSON texts.
    """
    items = getattr(result, field)
    if (texts := getattr(items, "texts", None)) is None:
        return make(result)
    return {**make(attrs.evolve(result, **{field: []})), wire_name(field): texts.of(items, revision)}


def _elicit_form(make: Make, params: ElicitFormParams, revision: Revision) -> dict[str, Any]:
    try:
        form = first_form(params.requested_schema)
    except ValueError as error:
        raise NotExpressible(f"{error}; this request uses MCP revision {revision}") from None
    return make(attrs.evolve(params, requested_schema=form))


def _elicit_url(make: Make, params: ElicitURLParams, revision: Revision) -> dict[str, Any]:
    if params.elicitation_id is None:
        raise NotExpressible(f"in MCP revision {revision}, a URL elicitation must have an elicitation id")
    return make(params)


def _elicit_result(make: Make, result: ElicitResult, revision: Revision) -> dict[str, Any]:
    for name, value in (result.content or {}).items():
        if isinstance(value, list):
            raise NotExpressible(f"field {name!r} is a list, which MCP revision {revision} doesn't allow in an answer")
    return make(result)


def _wants_objects(revision: Revision) -> bool:
    """Return true if ``revision`` allows only objects as structured content.

    This is so in all revisions up to 2025-11-25. Output schemas must describe objects there.
    """
    return revision.structured_content != "any"


def _has_tool_use(revision: Revision) -> bool:
    """Return true if ``revision`` supports tool use in sampling, so that a sampling message can have several content
    blocks."""
    return revision.name >= ToolUseContent._SINCE


def _lacks_urls(revision: Revision) -> bool:
    return revision.name < ElicitURLParams._SINCE


SHAPES: Final[dict[Any, tuple[Callable[[Revision], bool], Callable[[Make, Any, Revision], dict[str, Any]]]]] = {
    Tool: (_wants_objects, _tool),
    CallToolResult: (_wants_objects, _call_result),
    ToolResultContent: (_wants_objects, _call_result),
    SamplingMessage: (lambda revision: not _has_tool_use(revision), _message),
    CreateMessageResult: (lambda _: True, _sampled),
    SubscriptionFilter: (lambda _: True, _filter),
    ElicitFormParams: (_lacks_urls, _elicit_form),
    ElicitURLParams: (lambda revision: "notifications/elicitation/complete" in revision._methods, _elicit_url),
    ElicitResult: (_lacks_urls, _elicit_result),
}
"""For each class with several JSON forms: a function that returns whether a revision uses the form, and a function that
writes the form."""
