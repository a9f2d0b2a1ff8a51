"""Converters: JSON data as objects of the specification, and objects as JSON data, per revision.

The conversion code of a class is generated at its first use; each message runs one generated function. Data is read
strictly: JSON types are never coerced, and the rules are the same for all revisions; with a revision given, members
unknown to the revision are ignored. Objects are written in the form of one revision: see ``unstructuring.py``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from types import NoneType
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, get_args, get_origin

import attrs
import cattrs
from cattrs.cols import list_structure_factory
from cattrs.cols import mapping_structure_factory as _mapping_factory  # pyright: ignore[reportUnknownVariableType] untyped there
from cattrs.gen import make_dict_structure_fn, override

from ..jsonrpc.errors import INVALID_PARAMS, CodedError, ProtocolViolation, clean
from ..jsonrpc.sizes import MOST_LEVELS, is_small
from ..lazy_pattern import lazy_pattern
from .fields import JSONObject, is_said, tag_of, union_parts, wire_name
from .foreign_types import is_model
from .plain_classes import convert, is_plain_class
from .revisions import Revision
from .types.content import (
    BlobResourceContents,
    ResourceContents,
    TextResourceContents,
    UnknownContent,
)
from .types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, content_fits
from .types.lifecycle import InitializeParams, with_good_hints
from .types.notifications import LogLevel, SubscriptionFilter, log_level_rank
from .types.sampling import CreateMessageResult
from .types.tools import CallToolResult, Task
from .unstructuring import NotExpressible as NotExpressible
from .unstructuring import unstructure as unstructure

T = TypeVar("T")

_Hook: TypeAlias = Callable[[Any, Any], Any]

_PARTS: Final = 1000
_CHARACTERS: Final = 1_000_000
_MOST_FAULTS: Final = 20
"""Bound of faults in the parameters of ``initialize``."""


def structure(data: Any, kind: type[T]) -> T:
    """Make an object of ``kind`` from JSON data. Raises `ValueError` that names each fault and its place; for large
    data, only the first fault without its place."""
    try:
        return _hook_for(kind)(data, kind)
    except (KeyError, TypeError, ValueError) as error:
        if not is_small(data, _PARTS, _CHARACTERS, MOST_LEVELS):
            raise ValueError(clean(_in_words(error, None))) from None
        try:  # once more, by the converter that tells places; it collects all faults, with a traceback each
            return _structurer(None, detailed=True).structure(data, kind)
        except (TypeError, ValueError, cattrs.BaseValidationError) as error:
            faults = cattrs.transform_error(error, format_exception=_in_words)
            raise ValueError(clean("; ".join(map(_on_the_wire, faults)))) from None


Report: TypeAlias = Callable[[str, str], None]
"""Gets the method of a result, and the parts of the result that were left out or replaced, in words."""

logger = logging.getLogger("trio_mcp")


def log_faults(method: str, faults: str) -> None:
    """Log the parts of a result that can't be read."""
    logger.warning("the result of %s breaks the specification; left out or replaced: %s", method, faults)


def structure_result(method: str, result: Any, kind: type[T], report: Report = log_faults) -> T:
    """Make an object of ``kind`` from the result of a request of ``method``, without the parts that can't be read:
    see `mended_result`. Raises `ProtocolViolation` if nothing can be made of it."""
    hook = _hook_for(kind)
    try:
        return hook(result, kind)
    except (KeyError, TypeError, ValueError):
        return hook(mended_result(method, result, kind, report), kind)


def mended_result(method: str, result: Any, kind: Any, report: Report = log_faults) -> Any:
    """Return a result that can be read as a ``kind``: ``result`` without the items and optional members that can't be
    read, which go to ``report``. Content blocks that can't be read become `UnknownContent`. Raises `ProtocolViolation`.
    """
    try:
        mended, faults = _mended(result, kind)
    except ValueError as error:
        raise ProtocolViolation(f"the result of {method} makes no sense: {error}") from None
    if faults:
        report(method, faults)
    return mended


def _mended(data: Any, kind: Any, most: int = 2000) -> tuple[Any, str]:
    """Return data that can be read as a ``kind``, and what was left out or replaced. Raises `ValueError` that names all
    faults if nothing can be made of the data, or if there are more than ``most``: a server may have the same fault in
    each of its tools."""
    from .lenient_reading import LenientReading  # late: only odd peers need it

    reading = LenientReading(_hook_for, most)
    try:
        return reading.mend(data, kind), reading.in_words()
    except ValueError:
        structure(data, kind)
        raise


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
        # Sloppy clients leave out what nothing depends on.
        if kind is InitializeParams and is_small(members, _PARTS, _CHARACTERS, MOST_LEVELS):
            members, _ = _mended(members, kind, _MOST_FAULTS)
        return structure(members, kind)
    except ValueError as error:
        raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None


def _in_words(error: BaseException, _: type | None) -> str:
    return f"missing {wire_name(error.args[0])!r}" if isinstance(error, KeyError) else str(error)


_PART: Final = lazy_pattern(r"\['(?:[^']|'(?!\]))*+|\.(\w++)")
"""A key or a field name. An unterminated key extends to the end, so that no character is read twice."""


def _on_the_wire(fault: str) -> str:
    """Return the same fault with its place in names of the wire: ``$.maxTokens``, not ``$.max_tokens``."""
    words, at, place = fault.rpartition(" @ ")
    return words + at + _PART.sub(lambda m: f".{wire_name(m[1])}" if m[1] else m[0], place)


@cache
def _hook_for(kind: Any, revision: Revision | None = None) -> Callable[[Any, Any], Any]:
    return _structurer(revision).get_structure_hook(kind)


@cache
def _structurer(revision: Revision | None, *, detailed: bool = False) -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=detailed)
    for kind in (str, bool, int, float):
        converter.register_structure_hook(kind, _plain(kind))
    converter.register_structure_hook(LogLevel, _log_level)  # otherwise it counts as a plain string
    converter.register_structure_hook_factory(_is_plain, _plain)
    converter.register_structure_hook_factory(lambda kind: get_origin(kind) is list, _list)
    converter.register_structure_hook_factory(lambda kind: get_origin(kind) is dict and kind != dict[str, Any], _dict)
    converter.register_structure_hook_factory(lambda kind: get_origin(kind) is Literal, _one_of)
    converter.register_structure_hook_factory(_is_tagged_union, _tagged_union)
    converter.register_structure_hook_factory(attrs.has, partial(_structure_class, revision))
    converter.register_structure_hook_func(is_plain_class, convert)
    converter.register_structure_hook_func(is_model, convert)
    converter.register_structure_hook(ElicitFormParams | ElicitURLParams, partial(_elicit_params, converter))
    converter.register_structure_hook(ResourceContents, partial(_resource_contents, converter))
    return converter


_LARGEST_FLOAT: Final = sys.float_info.max
"""A greater integer is no number for arithmetic: a division by it raises `OverflowError`."""
_SCALARS: Final[dict[Any, str]] = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    NoneType: "null",
}


def _is_plain(kind: Any) -> bool:
    """Return whether values of ``kind`` are kept unchanged: scalars, whole objects, and unions of these."""
    return all(part in _SCALARS or part == dict[str, Any] for part in union_parts(kind) or (kind,))


def _plain(kind: Any) -> _Hook:
    parts = union_parts(kind) or (kind,)
    accepted = {dict if part == dict[str, Any] else part for part in parts}
    words = "an object" if dict in accepted else " or ".join(_SCALARS[part] for part in parts)
    takes_floats, takes_integers = float in accepted, accepted & {int, float} == {int}
    accepted -= {int} if takes_floats else set()  # which is looked at below

    def check(value: Any, _: Any) -> Any:
        # bool is an int to Python, not to JSON; an integer is a number to both.
        if type(value) in accepted or (takes_floats and type(value) is int and abs(value) <= _LARGEST_FLOAT):
            return value
        if takes_integers and type(value) is float and value.is_integer():  # 2020-12 validation, 6.1.1: 3.0 is one
            return int(value)
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


_structure_object: Final = _plain(dict[str, Any])


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


def _is_tagged_union(kind: Any) -> bool:
    return any(tag_of(member) is not None for member in union_parts(kind) if get_origin(member) is not list)


def _tagged_union(kind: Any, converter: cattrs.Converter) -> _Hook:
    by_tag = {tag: member for member in union_parts(kind) if (tag := tag_of(member)) is not None}
    list_kind = next((member for member in union_parts(kind) if get_origin(member) is list), None)
    takes_unknown = UnknownContent in union_parts(kind)
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
        if takes_unknown and type(value) is UnknownContent:  # from lenient reading: JSON has no such object
            return value
        raise TypeError("expected an object")

    return structure_union


def _structure_class(revision: Revision | None, kind: Any, converter: cattrs.Converter) -> _Hook:
    renames = {
        field.name: override(
            rename=wire_name(field.name), omit=revision is not None and not is_said(field, revision.name)
        )
        for field in attrs.fields(kind)
    }
    if kind in _OPEN:
        renames[_OPEN[kind]] = override(omit=True)
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


_OPEN: Final = {CallToolResult: "schema_error", CreateMessageResult: "extra", SubscriptionFilter: "extensions"}
"""The field of a class that isn't read from a member of its name: it holds members of any name, or is our own."""
_SAMPLED: Final = frozenset(wire_name(field.name) for field in attrs.fields(CreateMessageResult)) - {"extra"}
"""The members of a sampling's result that have a field of their own."""


def _with_extras(result: CreateMessageResult, value: JSONObject) -> CreateMessageResult:
    if value.keys() <= _SAMPLED:
        return result
    return attrs.evolve(result, extra={name: member for name, member in value.items() if name not in _SAMPLED})


def _with_extensions(asked: SubscriptionFilter, value: JSONObject) -> SubscriptionFilter:
    names = [name for name, wanted in value.items() if "/" in name and wanted is True]
    return attrs.evolve(asked, extensions=names) if names else asked


def _checked(result: ElicitResult, _: JSONObject) -> ElicitResult:
    if result.content is not None and not content_fits(result.content):
        raise ValueError("the content of an elicitation holds strings, numbers, booleans and lists of strings")
    return result


_BEFORE: Final[dict[Any, Callable[[JSONObject], JSONObject]]] = {Task: lambda task: {"ttl": None, **task}}
"""Steps on the data before the object is made. The ``ttl`` of a task for ever is null (2025-11-25 tasks, Task), and
mcp 1.x leaves that out."""
_AFTER: Final[dict[Any, Callable[[Any, JSONObject], Any]]] = {
    CreateMessageResult: _with_extras,
    SubscriptionFilter: _with_extensions,
    ElicitResult: _checked,
}
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
