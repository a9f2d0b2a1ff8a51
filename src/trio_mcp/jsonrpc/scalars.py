"""plain_scalar makes plain numbers and text of numbers and text of other classes."""

from __future__ import annotations

from numbers import Integral, Real


def plain_scalar(value: object) -> int | float | str:
    """Return as plain number or text a ``value`` of a subclass of these, or of `numbers.Real`, as numpy's are.

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
