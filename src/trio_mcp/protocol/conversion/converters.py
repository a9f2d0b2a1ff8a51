"""Converters: JSON data as objects and objects as JSON data, the entrance to `structuring` and `unstructuring`.

The conversion code of a class is generated at its first use; each message runs one generated function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar, cast

import cattrs

from ...jsonrpc.errors import INVALID_PARAMS, CodedError, ProtocolViolation
from ...jsonrpc.extent import MOST_LEVELS, is_small
from ...jsonrpc.words import clean
from ..fields import wire_name
from ..revisions import Revision
from .structuring import structurer
from .unstructuring import converter_for

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
        return _without_later_members(members, kind, revision)


def _without_later_members(members: Any, kind: type[T], revision: Revision) -> T:
    try:
        return structure(members, kind)
    except ValueError as error:
        try:
            return _hook_in(revision, kind)(members, kind)
        except (KeyError, TypeError, ValueError):
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
def _hook_for(kind: Any) -> Callable[[Any, Any], Any]:
    return _fast().get_structure_hook(kind)


@cache
def _hook_in(revision: Revision, kind: Any) -> Callable[[Any, Any], Any]:
    return _fast_in(revision).get_structure_hook(kind)


@cache
def _fast_in(revision: Revision) -> cattrs.Converter:
    return structurer(cattrs.Converter(detailed_validation=False), revision)


@cache
def _fast() -> cattrs.Converter:
    return structurer(cattrs.Converter(detailed_validation=False))


@cache
def _detailed() -> cattrs.Converter:
    return structurer(cattrs.Converter(detailed_validation=True))
