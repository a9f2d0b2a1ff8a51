"""The depth of nesting and the size of values. Nothing here recurses.

A peer decides which values are decoded, checked and traversed. These functions are therefore called before any code
that recurses, or that takes more time or memory than the value itself.
"""

from __future__ import annotations

import math
from itertools import islice
from sys import getsizeof
from typing import Any, Final, cast

from msgspec import Raw

from ..lazy import lazy_pattern

MOST_LEVELS: Final = 256
"""Bound of nested arrays and objects, the outermost included, for reading and writing: the same on every Python. Real
messages have a tenth of the bound, and the stack has room for four times as many levels."""

MOST_FAR: Final = 100_000
"""Bound of numbers with exponents of three digits or more in a message. The decoder takes two hundred times as long for
the largest and smallest of such numbers as for others: one second for this many on a slow machine."""
_FAR: Final = lazy_pattern(rb"[eE](?<=[0-9][eE])[+-]?[0-9]{3,}(?=[\s,\]}])")

_FARTHEST: Final = 2**64
"""Bound of numbers that are cheap to check. Above the bound, and below its reciprocal, checking a number takes
arithmetic of any length."""
_FAR_INTEGER: Final = 1000
_FAR_BIT: Final = 4
"""Parts that each bit of such an integer counts as."""
_FAR_FLOAT: Final = 50

_SHORT: Final = 512
_WIDEST: Final = 4
"""Bytes of each character in a string that holds any character beyond the first 65,536."""
_ARRAY: Final = 90
_OBJECT: Final = 80
_MEMBER: Final = 60
_ITEM: Final = 40
"""Bytes of an item's place, and of a number."""
_STRING: Final = 50
HEAVIEST: Final = _WIDEST + _ARRAY
"""The most that `weight_of` returns for each byte."""

_CONTAINERS: Final = frozenset((dict, list, tuple))
_FINITE: Final = frozenset((dict, list, tuple, str, int, bool, type(None), Raw))
"""Classes whose values all have a JSON form; a `Raw` has one already."""

LONG: Final = 4 * 1024
"""Bytes of a text from which a look at the first parts of its value costs less than counting marks in the text."""
_FEW: Final = 200
"""So many parts cannot be nested too deeply."""


def few_parts(value: Any) -> list[Any] | None:
    """Return ``value`` and everything inside, names of members included, or `None` for more than 200 parts. Long
    strings and large values take no longer than others."""
    parts = [value]
    for part in parts:  # which grows meanwhile
        if type(part) in _CONTAINERS:
            is_object = type(part) is dict
            if len(parts) + len(part) * (1 + is_object) > _FEW:
                return None
            parts.extend(part)
            if is_object:
                parts.extend(cast("dict[Any, Any]", part).values())
    return parts


def has_json_form(parts: list[Any]) -> bool:
    """Return whether each of ``parts``, as `few_parts` returns them, has a JSON form: it is plain data, and no NaN or
    infinity."""
    return all(type(part) in _FINITE or (type(part) is float and math.isfinite(part)) for part in parts)


def bytes_of(parts: list[Any]) -> int:
    """Return how many bytes of memory ``parts`` take, as `few_parts` returns them."""
    return sum(map(getsizeof, parts))


def is_too_deep(value: Any, levels: int = MOST_LEVELS) -> bool:
    """Return whether more than ``levels`` arrays and objects are inside each other in ``value``."""
    level: list[Any] = [value] if type(value) in _CONTAINERS else []
    for _ in range(levels):
        if not level:
            return False
        level = [
            item
            for container in level
            for item in cast("list[Any]", container.values() if type(container) is dict else container)
            if type(item) in _CONTAINERS
        ]
    return bool(level)


def is_small(value: Any, parts: int, characters: int, levels: int) -> bool:
    """Return whether ``value`` has at most so many parts (items and members), characters and levels of nesting.

    Stops as soon as a bound is exceeded, so that larger values take no longer.
    """
    level: list[Any] = [value]
    while level:
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                characters -= len(item)
            elif isinstance(item, dict | list | tuple):
                parts -= len(cast("list[Any]", item))
                if parts < 0 or levels == 0:
                    return False
                if isinstance(item, dict):
                    members = cast("dict[Any, Any]", item)
                    characters -= sum(len(name) for name in members if isinstance(name, str))
                    below.extend(members.values())
                else:
                    below.extend(cast("list[Any]", item))
        if characters < 0:
            return False
        level = below
        levels -= 1
    return True


def has_many_far(line: bytes | bytearray) -> bool:
    """Return whether ``line``, a message, has more than `MOST_FAR` numbers with exponents of three digits or more.

    Strings that look like such numbers count as well, but are rare. Short lines and those of few numbers cost nothing.
    """
    if len(line) < 6 * MOST_FAR:
        return False
    comma = -1
    for _ in range(_FEW):  # few commas are found much faster than counted
        comma = line.find(b",", comma + 1)
        if comma < 0:
            return False
    if line.count(b",") < MOST_FAR or line.count(b"e") + line.count(b"E") < MOST_FAR:
        return False
    return next(islice(_FAR.finditer(line), MOST_FAR, None), None) is not None


def is_checkable(value: Any, parts: int) -> bool:
    """Return whether ``value`` has at most so many ``parts`` (items and members).

    An integer of more than 64 bits counts as 1000 more and four for each bit. A float of at least 2**64, or of at most
    1 / 2**64 and not zero, counts as 50 more, whatever its sign. The count stops when the bound is exceeded, so larger
    values take no longer.
    """
    level: list[Any] = [value]
    while level:
        below: list[Any] = []
        for item in level:
            kind = cast("Any", type(item))
            if kind is int:
                parts -= 0 if -_FARTHEST < item < _FARTHEST else _FAR_INTEGER + _FAR_BIT * item.bit_length()
            elif kind is float:
                parts -= 0 if item == 0 or 1 / _FARTHEST < abs(item) < _FARTHEST else _FAR_FLOAT
            elif kind in _CONTAINERS:
                parts -= len(item)
                if parts >= 0:
                    below.extend(item.values() if kind is dict else item)
            if parts < 0:
                return False
        level = below
    return True


def weight_of(line: bytes | bytearray) -> int:
    """Return about how many bytes ``line``, a message, takes once decoded.

    The estimate is somewhat too high, seldom too low: between one and fifty times the length of ``line``. A short line
    counts with its length, since the number of requests and notifications has its own bounds.
    """
    length = len(line)
    if length <= _SHORT:
        return length
    count = line.count
    text = length if line.isascii() and b"\\u" not in line else length * _WIDEST
    return (
        text
        + _ARRAY * count(b"[")
        + _OBJECT * count(b"{")
        + _MEMBER * count(b":")
        + _ITEM * count(b",")
        + _STRING * (count(b'"') // 2)
    )
