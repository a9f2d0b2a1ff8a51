"""What a server answered, as an object, or what is wrong with it."""

from __future__ import annotations

from typing import Any, TypeVar

from ..jsonrpc.errors import ProtocolViolation
from ..spec.converters import structure

__all__ = ["structured"]

T = TypeVar("T")


def structured(method: str, result: Any, result_type: type[T]) -> T:
    """``result`` as a ``result_type``. Raises `ProtocolViolation` when it is none."""
    if result_type is dict:
        return result
    try:
        return structure(result, result_type)
    except ValueError as error:
        raise ProtocolViolation(f"the result of {method} makes no sense: {error}") from None
