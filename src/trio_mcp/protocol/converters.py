"""Converters between JSON data and the classes of the MCP specification, for each protocol revision.

Data is read strictly (`readers.py`): JSON types are never coerced, and the rules are the same for all revisions. If a
revision is given, members that it doesn't have are ignored. Objects are written in the form of one revision, which
follows from the history beside each field (`writers.py`). The code for a class is generated on its first use, and each
message runs one generated function (`fields.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar, cast

from ..jsonrpc.errors import INVALID_PARAMS, CodedError, ProtocolViolation, clean
from ..jsonrpc.sizes import MOST_LEVELS, is_small
from .fields import as_object, fault_text
from .readers import Hook, Readers
from .revisions import Revision
from .types.lifecycle import InitializeParams
from .writers import NotExpressible as NotExpressible
from .writers import Writers

T = TypeVar("T")

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


@cache
def _hook_for(kind: Any, revision: Revision | None = None) -> Hook:
    return _readers(revision).get_structure_hook(kind)


@cache
def _readers(revision: Revision | None) -> Readers:
    return Readers(revision, lambda kind: _other(revision, kind))


def _other(revision: Revision | None, kind: Any) -> Hook:
    from .cattrs_converters import structurer  # import cattrs only here, because only types of other packages need it

    return structurer(revision).get_structure_hook(kind)
