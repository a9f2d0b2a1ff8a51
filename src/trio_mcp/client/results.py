"""Results: a server's answer as an object, or the error for a malformed answer."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from ..jsonrpc.errors import ProtocolViolation
from ..protocol.conversion.converters import structure_result
from ..protocol.fields import JSONObject

__all__ = ["check_result_type", "structured"]

T = TypeVar("T")


def structured(method: str, result: Any, result_type: type[T]) -> T:
    """Return ``result`` as a ``result_type``. Raises `ProtocolViolation` when ``result`` does not fit."""
    return result if result_type is dict else structure_result(method, result, result_type)


def check_result_type(method: str, result: Any) -> None:
    """Raise `ProtocolViolation` for a plain result of a modern revision that is not complete (2026-07-28 basic,
    ResultType: absent means complete, anything unrecognised is invalid)."""
    kind = cast("JSONObject", result).get("resultType", "complete") if isinstance(result, dict) else "complete"
    if kind == "input_required":
        raise ProtocolViolation(f"{method}: the server asks for input, which this method has no place for")
    if kind != "complete":
        raise ProtocolViolation(f"{method}: the server answered with the unknown result type {str(kind)[:100]!r}")
