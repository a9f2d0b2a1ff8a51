"""Editing of JSON text that people write: one value is set, and the rest is preserved, spaces and comments included."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, cast

import attrs

from ...hosting.config_files import without_comments, without_trailing_commas
from ...protocol.fields import JSONObject

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_INDENT: Final = re.compile(r"\n([ \t]*)$")
_USUAL: Final = "  "


def _integer(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:  # more digits than Python reads; nobody counts with it here
        return digits


_DECODER: Final = json.JSONDecoder(parse_int=_integer)


class NotEditable(ValueError):
    """The text is no JSON object, or something else is where an object should be. The message says where."""


def parse_object(text: str) -> JSONObject:
    """Return the data of the text, which may have comments and trailing commas. Raises `NotEditable`, with line and
    column."""
    try:
        value = _DECODER.decode(without_trailing_commas(without_comments(text)))
    except json.JSONDecodeError as error:
        raise NotEditable(f"it is no JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise NotEditable("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise NotEditable("it is no JSON object")
    return cast("JSONObject", value)


def with_value(text: str, path: Sequence[str], value: Any) -> str:
    """Return ``text`` with ``value`` at ``path``: in place of the old value, or as the last member of its object.

    Missing objects on the path are made. Indentation and line ends are those of the text. Comments are preserved,
    except inside of a replaced value. Raises `NotEditable`.
    """
    parse_object(text)
    plain = without_trailing_commas(without_comments(text))
    style = _Style.of(text, plain)
    place = _read_object(plain, _skip(plain, 0))
    for depth, key in enumerate(path[:-1]):
        member = place.member(key)
        if member is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return style.added(text, place, depth, key, value)
        if plain[member.start] != "{":
            raise NotEditable(f"{'.'.join(path[: depth + 1])} in it is no object")
        place = _read_object(plain, member.start)
    member = place.member(path[-1])
    if member is None:
        return style.added(text, place, len(path) - 1, path[-1], value)
    return text[: member.start] + style.written(value, member.indent) + text[member.end :]


@attrs.frozen
class _Member:
    """A member of an object: the start and end of its value. ``indent`` is the indentation of its line, `None` inside
    of a line."""

    key: str
    indent: str | None
    start: int
    end: int


@attrs.frozen
class _Object:
    """An object: the positions of its braces, and its members."""

    start: int
    end: int
    members: list[_Member]

    def member(self, key: str) -> _Member | None:
        """Return the last member of this name, which is the valid one; `None` without any."""
        return next((member for member in reversed(self.members) if member.key == key), None)


def _read_object(text: str, start: int) -> _Object:
    """Return the object at ``start`` of a text known to be JSON."""
    members: list[_Member] = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        if text[at] == ",":
            at = _skip(text, at + 1)
        indent = _INDENT.search(text, start, at)
        key, end = cast("tuple[str, int]", _DECODER.raw_decode(text, at))
        value_start = _skip(text, _skip(text, end) + 1)  # past the colon
        _, value_end = _DECODER.raw_decode(text, value_start)
        members.append(_Member(key, indent[1] if indent else None, value_start, value_end))
        at = _skip(text, value_end)
    return _Object(start, at, members)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None, "it matches nothing, too"
    return space.end()


@attrs.frozen
class _Style:
    """The style of the text. ``unit`` is the unit of indentation, `None` when all is in one line."""

    unit: str | None
    line_end: str

    @classmethod
    def of(cls, text: str, plain: str) -> _Style:
        members = _read_object(plain, _skip(plain, 0)).members
        unit = members[0].indent if members else _USUAL
        return cls(_USUAL if unit == "" else unit, "\r\n" if "\r\n" in text else "\n")

    def written(self, value: Any, indent: str | None) -> str:
        """Return the text of ``value`` behind a key of this indentation."""
        if indent is None or self.unit is None:
            return json.dumps(value, ensure_ascii=False)
        text = json.dumps(value, ensure_ascii=False, indent=self.unit)
        return text.replace("\n", self.line_end + indent)

    def added(self, text: str, place: _Object, depth: int, key: str, value: Any) -> str:
        """Return ``text`` with one more member at the end of ``place``."""
        if place.members:
            return self._behind(text, place, place.members[-1], key, value)
        indent = None if self.unit is None else self.unit * (depth + 1)
        member = f"{json.dumps(key, ensure_ascii=False)}: {self.written(value, indent)}"
        if end := _end_of_comments(text, place.start + 1, place.end):
            return f"{text[:end]}{self.line_end}{indent or ''}{member}{text[end:]}"
        if indent is not None:
            member = f"{self.line_end}{indent}{member}{self.line_end}{(self.unit or '') * depth}"
        return text[: place.start + 1] + member + text[place.end :]

    def _behind(self, text: str, place: _Object, last: _Member, key: str, value: Any) -> str:
        member = f"{json.dumps(key, ensure_ascii=False)}: {self.written(value, last.indent)}"
        comma = without_comments(text).find(",", last.end, place.end)
        comma, end = (",", last.end) if comma < 0 else ("", comma + 1)
        if last.indent is None:
            return f"{text[:end]}{comma} {member}{text[end:]}"
        rest = _end_of_comments(text, end, place.end) or end
        return f"{text[: last.end]}{comma}{text[last.end : rest]}{self.line_end}{last.indent}{member}{text[rest:]}"


def _end_of_comments(text: str, start: int, end: int) -> int | None:
    """Return the end of comments that fill the rest; `None` if there are none."""
    comments = text[start:end].rstrip()
    return start + len(comments) if comments.strip() else None
