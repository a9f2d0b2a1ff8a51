"""The depth and size of JSON values. These functions don't recurse.

A peer decides which values are decoded, checked and traversed. So these functions are called before any code that
recurses, or that takes more time or memory than the value itself.
"""

from __future__ import annotations

import math
from itertools import islice
from sys import getsizeof
from typing import Any, Final, cast

from msgspec import Raw

from ..lazy import lazy_pattern

MOST_LEVELS: Final = 256
"""Maximum levels of nested arrays and objects, including the outermost, that are read and written on every Python
version. Real messages have a tenth of this number, and the stack has room for four times as many levels."""

MOST_FAR: Final = 100_000
"""Maximum count, in a message, of numbers with exponents of three digits or more. In the worst case, the decoder takes
two hundred times as long for such a number as for others. This many take a second on a slow machine."""
_FAR: Final = lazy_pattern(rb"[eE](?<=[0-9][eE])[+-]?[0-9]{3,}(?=[\s,\]}])")

_FARTHEST: Final = 2**64
"""Largest number that is cheap to validate. Validating a larger number, or one below its reciprocal, needs big-integer
arithmetic."""
_FAR_INTEGER: Final = 1000
_FAR_BIT: Final = 4
"""What each bit of a big integer counts in `is_checkable`."""
_FAR_FLOAT: Final = 50

_SHORT: Final = 512
_WIDEST: Final = 4
"""Bytes per character of a Python string that contains any character beyond the first 65,536."""
_ARRAY: Final = 90
_OBJECT: Final = 80
_MEMBER: Final = 60
_ITEM: Final = 40
"""Approximate bytes of memory for each list item or number."""
_STRING: Final = 50
HEAVIEST: Final = _WIDEST + _ARRAY
"""Maximum result of `weight_of` per byte of text."""

_CONTAINERS: Final = frozenset((dict, list, tuple))
_FINITE: Final = frozenset((dict, list, tuple, str, int, bool, type(None), Raw))
"""Classes whose values all have a JSON form. A `Raw` is JSON text already."""

LONG: Final = 4 * 1024
"""Length of a text in bytes above which examining the first parts of its value is faster than counting brackets in the
text."""
_FEW: Final = 200
"""Maximum number of parts of a value that can't be nested too deeply."""


def few_parts(value: Any) -> list[Any] | None:
    """Return a flat list of ``value`` and all values inside it. Return `None` if there are more than 200.

    The list includes the field names of JSON objects. The time doesn't depend on the size of ``value``.
    """
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
    """Return true if each of the values in ``parts`` can be written as JSON.

    They must be plain data, and neither NaN nor infinite. `few_parts` returns such a list.
    """
    return all(type(part) in _FINITE or (type(part) is float and math.isfinite(part)) for part in parts)


def bytes_of(parts: list[Any]) -> int:
    """Return how many bytes of memory the values in ``parts`` take.

    `few_parts` returns such a list.
    """
    return sum(map(getsizeof, parts))


def is_too_deep(value: Any, levels: int = MOST_LEVELS) -> bool:
    """Return true if arrays and objects are nested more than ``levels`` levels deep in ``value``."""
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
    """Return true if ``value`` doesn't exceed the given number of parts, characters and levels of nesting.

    Parts are list items and object fields. Stops as soon as a limit is exceeded, so larger values take no longer.
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
    """Return true if the message ``line`` has more than `MOST_FAR` numbers whose exponents have three digits or more.

    Strings that look like such numbers count as well, but are rare. Short lines and lines with few numbers cost
    nothing.
    """
    if len(line) < 6 * MOST_FAR:
        return False
    comma = -1
    # Check first whether the line has a few commas, which is much faster than counting all its commas and exponents.
    for _ in range(_FEW):
        comma = line.find(b",", comma + 1)
        if comma < 0:
            return False
    if line.count(b",") < MOST_FAR or line.count(b"e") + line.count(b"E") < MOST_FAR:
        return False
    return next(islice(_FAR.finditer(line), MOST_FAR, None), None) is not None


def is_checkable(value: Any, parts: int) -> bool:
    """Return true if ``value`` has at most ``parts`` list items and object fields in total.

    An integer of more than 64 bits counts as 1000 more, and four for each bit. A float of at least 2**64, or of at most
    1 / 2**64 and not zero, counts as 50 more, whatever its sign. Counting stops when the limit is exceeded, so larger
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
    """Estimate how many bytes of memory the message ``line`` takes after decoding.

    The estimate is usually somewhat too high, and seldom too low. It is between one and fifty times the length of
    ``line``. A short line counts as its length, because the number of requests and notifications has its own limits.
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
