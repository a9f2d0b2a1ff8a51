"""Scalars: numbers and text of other classes than Python's own, as JSON has them."""

from __future__ import annotations

from numbers import Integral, Real

__all__ = ["plain_scalar"]


def plain_scalar(value: object) -> int | float | str:
    """Return the number or the text that ``value`` is: one of a subclass, or one of `numbers.Real`, as numpy's are.

    Raises `TypeError` for all else.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    kind = type(value)
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} has no JSON form")
