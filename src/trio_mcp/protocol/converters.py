"""Converters between JSON data and the classes of the MCP specification, for each protocol revision.

Data is read strictly (`readers.py`): JSON types are never coerced, and the rules are the same for all revisions. If a
revision is given, members that it doesn't have are ignored. Objects are written in the form of one revision. `Writers`
derives it from the history beside each field, and `SHAPES` has the few classes of which not only the fields differ
between revisions. The code for a class is generated on its first use, and each message runs one generated function
(`fields.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from operator import attrgetter
from types import NoneType
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, get_args, get_origin

import attrs

from ..jsonrpc.errors import INVALID_PARAMS, CodedError, ProtocolViolation, clean
from ..jsonrpc.sizes import MOST_LEVELS, is_small
from .fields import as_object, fault_text, fields_of, is_ours, union_parts, wire_name, writer_of
from .readers import Hook, Readers, is_plain
from .revisions import Revision
from .types.content import ResourceLink, ToolResultContent, ToolUseContent, UnknownContent
from .types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, first_form
from .types.lifecycle import InitializeParams
from .types.notifications import LogLevel, SubscriptionFilter
from .types.sampling import CreateMessageResult, SamplingMessage
from .types.tools import CallToolResult, Tool

T = TypeVar("T")

Make: TypeAlias = Callable[[Any], dict[str, Any]]
Write: TypeAlias = Callable[[Any], Any]

_PARTS: Final = 1000
_CHARACTERS: Final = 1_000_000
_MOST_FAULTS: Final = 20
"""Maximum number of faults in the parameters of a request."""


def structure(data: Any, kind: type[T]) -> T:
    """Parse JSON data as an instance of ``kind``.

    Raises `ValueError` with each fault and its JSON path. For large data, the error has only the first fault, without
    its path.
    """
    try:
        return _hook_for(kind)(data, kind)
    except (KeyError, TypeError, ValueError) as error:
        if not is_small(data, _PARTS, _CHARACTERS, MOST_LEVELS):
            raise ValueError(clean(fault_text(error))) from None
    from .cattrs_converters import faults_in  # import cattrs only here, because it's needed only for invalid data

    # Parse the invalid data again with a slower converter, which finds all faults and their JSON paths.
    raise ValueError(clean("; ".join(faults_in(data, kind))))


def structure_notification(params: Any, kind: type[T]) -> T:
    """Parse the parameters of a notification as an instance of ``kind``. Omit optional members whose values are
    invalid.

    Raises `ValueError` if other members are invalid.
    """
    hook = _hook_for(kind)
    try:
        return hook(params, kind)
    except (KeyError, TypeError, ValueError):
        return hook(_repaired(params, kind, _MOST_FAULTS)[0], kind)


Report: TypeAlias = Callable[[str, str], None]
"""Function that receives the method of a result, and a description of the parts of the result that were left out or
replaced."""

logger = logging.getLogger("trio_mcp")


def log_faults(method: str, faults: str) -> None:
    """Log which invalid parts of a result were omitted or replaced."""
    logger.warning("the result of %s breaks the specification; left out or replaced: %s", method, faults)


def structure_result(method: str, result: Any, kind: type[T], report: Report = log_faults) -> T:
    """Parse the result of a ``method`` request as an instance of ``kind``.

    Invalid parts are omitted: see `repaired_result`. Raises `ProtocolViolation` if too much of the result is invalid.
    """
    hook = _hook_for(kind)
    try:
        return hook(result, kind)
    except (KeyError, TypeError, ValueError):
        return hook(repaired_result(method, result, kind, report), kind)


def repaired_result(method: str, result: Any, kind: Any, report: Report = log_faults) -> Any:
    """Return ``result`` without its invalid parts, so that it can be parsed as the type ``kind``.

    Invalid list items and optional members are omitted, and passed to ``report``. Invalid content blocks become
    `UnknownContent`. Raises `ProtocolViolation` if too much is invalid.
    """
    try:
        mended, faults = _repaired(result, kind)
    except ValueError as error:
        raise ProtocolViolation(f"the result of {method} is invalid: {error}") from None
    if faults:
        report(method, faults)
    return mended


def _repaired(data: Any, kind: Any, limit: int = 10_000) -> tuple[Any, str]:
    """Return ``data`` without its invalid parts, and a description of these parts.

    The returned data can be parsed as a ``kind``.

    Raises `ValueError` with all faults if the data can't be repaired, or if there are more than ``limit`` faults. A
    server may have the same fault in each of its tools.
    """
    from .lenient_reading import LenientReading  # import `LenientReading` only here, because only invalid data needs it

    reading = LenientReading(_hook_for, limit)
    try:
        return reading.repair(data, kind), reading.summary()
    except ValueError:
        structure(data, kind)
        raise


def structure_params(data: Any, kind: type[T], revision: Revision) -> T:
    """Parse the received parameters of a request or notification as an instance of ``kind``.

    Members that ``revision`` doesn't have are ignored. Raises `CodedError` -32602 if the parameters are invalid.
    """
    members: Any = {} if data is None else data
    try:
        return _hook_for(kind)(members, kind)
    except (KeyError, TypeError, ValueError):
        with suppress(KeyError, TypeError, ValueError):
            return _hook_for(kind, revision)(members, kind)
    try:
        # Some clients omit required members of `initialize` that the server doesn't need, so accept their requests.
        if kind is InitializeParams and is_small(members, _PARTS, _CHARACTERS, MOST_LEVELS):
            members, _ = _repaired(members, kind, _MOST_FAULTS)
        # Accept [] for {}, because PHP encodes an empty object as a list.
        elif as_object(members).get("arguments") == []:
            members = {**members, "arguments": {}}
        return structure(members, kind)
    except ValueError as error:
        raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None


@cache
def _hook_for(kind: Any, revision: Revision | None = None) -> Hook:
    return _readers(revision).get_structure_hook(kind)


@cache
def _readers(revision: Revision | None) -> Readers:
    return Readers(revision, lambda kind: _other(revision, kind))


def _other(revision: Revision | None, kind: Any) -> Hook:
    from .cattrs_converters import structurer  # import cattrs only here, because only types of other packages need it

    return structurer(revision).get_structure_hook(kind)


def unstructure(value: Any, revision: Revision) -> Any:
    """Encode an object as JSON data for the protocol revision ``revision``.

    Raises `NotExpressible` if the revision can't express the object.
    """
    return _unhook_for(revision, cast("Any", type(value)))(value)


@cache
def _unhook_for(revision: Revision, kind: type) -> Callable[[Any], Any]:
    return _writers(revision).writer_of(kind)


@cache
def _writers(revision: Revision) -> Writers:
    return Writers(revision)


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
