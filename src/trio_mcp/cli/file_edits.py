"""Edits a JSON file that belongs to a user or another program, and preserves the rest of its text.

One value is set in the text. The rest is preserved, including spaces and comments. The file is replaced atomically, and
a copy of the old file is kept in the same folder.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

from ..classes import frozen
from ..hosting.config_files import without_comments, without_trailing_commas
from ..protocol.fields import JSONObject

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_USUAL: Final = "  "
_MOST_BYTES: Final = 16 * 1024 * 1024


def _integer(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:  # the number has more digits than Python converts, but its value isn't needed
        return digits


_DECODER: Final = json.JSONDecoder(parse_int=_integer)


class NotEditable(ValueError):
    """The text of a file can't be edited: it isn't a JSON object, or has another value where an object is expected. The
    message names the place in the text."""


def parse_object(text: str) -> JSONObject:
    """Return the JSON object in ``text``, which may contain comments and trailing commas. Raises `NotEditable` if
    ``text`` isn't a JSON object.

    The error's message contains the line and column if the JSON is invalid.
    """
    try:
        value = _DECODER.decode(without_trailing_commas(without_comments(text)))
    except json.JSONDecodeError as error:
        raise NotEditable(
            f"the file is not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise NotEditable("the file is nested too deeply") from None
    if not isinstance(value, dict):
        raise NotEditable("the file must contain a JSON object")
    return cast("JSONObject", value)


def with_value(text: str, path: Sequence[str], value: Any) -> str:
    """Return the JSON ``text`` with ``value`` set at ``path``. An old value is replaced. A new value becomes the last
    member of its object.

    Missing objects on the path are created. Indentation and line ends match those of the text. Comments are preserved,
    except inside a replaced value. Raises `NotEditable`.
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
            raise NotEditable(f"{'.'.join(path[: depth + 1])} in the file must be a JSON object")
        place = _read_object(plain, member.start)
    member = place.member(path[-1])
    if member is None:
        return style.added(text, place, len(path) - 1, path[-1], value)
    return text[: member.start] + style.written(value, member.indent) + text[member.end :]


@frozen
class _ObjectMember:
    """A member of a JSON object in a text: its key, and the start and end of its value.

    ``indent`` is the indentation of the member's line. `None` means that the line begins with another member.
    """

    key: str
    indent: str | None
    start: int
    end: int


@frozen
class _Object:
    """A JSON object in a text: the positions of its braces, and its members."""

    start: int
    end: int
    members: list[_ObjectMember]

    def member(self, key: str) -> _ObjectMember | None:
        """Return the member ``key`` of the JSON object; `None` if there is no such member. If the key is repeated, the
        last member counts."""
        return next((member for member in reversed(self.members) if member.key == key), None)


def _read_object(text: str, start: int) -> _Object:
    """Find the members of the JSON object that begins at ``start`` in ``text``. The text is already known to be valid
    JSON."""
    members: list[_ObjectMember] = []
    before, at = start + 1, _skip(text, start + 1)
    while text[at] != "}":
        if text[at] == ",":
            at = _skip(text, at + 1)
        line = text.rfind("\n", before, at) + 1
        indent = text[line:at] if line and not text[line:at].strip(" \t") else None
        key, end = cast("tuple[str, int]", _DECODER.raw_decode(text, at))
        value_start = _skip(text, _skip(text, end) + 1)  # past the colon
        _, value_end = _DECODER.raw_decode(text, value_start)
        members.append(_ObjectMember(key, indent, value_start, value_end))
        before, at = value_end, _skip(text, value_end)
    return _Object(start, at, members)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None, "the pattern also matches an empty string"
    return space.end()


@frozen
class _Style:
    """The formatting of a JSON text. ``unit`` is one level of indentation; `None` if the text is a single line."""

    unit: str | None
    line_end: str

    @classmethod
    def of(cls, text: str, plain: str) -> _Style:
        members = _read_object(plain, _skip(plain, 0)).members
        unit = members[0].indent if members else _USUAL
        return cls(_USUAL if unit == "" else unit, "\r\n" if "\r\n" in text else "\n")

    def written(self, value: Any, indent: str | None) -> str:
        """Return ``value`` as JSON text in the style of the file. ``indent`` is the indentation of the key, so it is
        added to each line after the first."""
        if indent is None or self.unit is None:
            return json.dumps(value, ensure_ascii=False)
        text = json.dumps(value, ensure_ascii=False, indent=self.unit)
        return text.replace("\n", self.line_end + indent)

    def added(self, text: str, place: _Object, depth: int, key: str, value: Any) -> str:
        """Return the JSON ``text`` with a new member at the end of the object ``place``."""
        if place.members:
            return self._behind(text, place, place.members[-1], key, value)
        indent = None if self.unit is None else self.unit * (depth + 1)
        member = f"{json.dumps(key, ensure_ascii=False)}: {self.written(value, indent)}"
        if end := _end_of_comments(text, place.start + 1, place.end):
            return f"{text[:end]}{self.line_end}{indent or ''}{member}{text[end:]}"
        if indent is not None:
            member = f"{self.line_end}{indent}{member}{self.line_end}{(self.unit or '') * depth}"
        return text[: place.start + 1] + member + text[place.end :]

    def _behind(self, text: str, place: _Object, last: _ObjectMember, key: str, value: Any) -> str:
        member = f"{json.dumps(key, ensure_ascii=False)}: {self.written(value, last.indent)}"
        comma = without_comments(text).find(",", last.end, place.end)
        comma, end = (",", last.end) if comma < 0 else ("", comma + 1)
        if last.indent is None:
            return f"{text[:end]}{comma} {member}{text[end:]}"
        rest = _end_of_comments(text, end, place.end) or end
        return f"{text[: last.end]}{comma}{text[last.end : rest]}{self.line_end}{last.indent}{member}{text[rest:]}"


def _end_of_comments(text: str, start: int, end: int) -> int | None:
    """Return the position after the comments that fill the rest of the line; `None` if there are no comments."""
    comments = text[start:end].rstrip()
    return start + len(comments) if comments.strip() else None


_AROUND: Final = 3
"""Number of unchanged lines shown before and after a change."""


def shown_change(old: str, new: str, name: str) -> str:
    """Return the change of a file as a unified diff with a single hunk, from the first to the last changed line.

    `difflib` isn't used: it makes smaller hunks, but takes quadratic time.
    """
    before, after = (io.StringIO(text, newline="\n").readlines() for text in (old, new))
    start = _same(before, after)
    end = _same(before[start:][::-1], after[start:][::-1])
    removed, added = before[start : len(before) - end], after[start : len(after) - end]
    first = max(start - _AROUND, 0)
    ahead, behind = before[first:start], before[len(before) - end :][:_AROUND]
    around = len(ahead) + len(behind)
    places = f"-{_range(first, around + len(removed))} +{_range(first, around + len(added))}"
    marked = [*_marked(" ", ahead), *_marked("-", removed), *_marked("+", added), *_marked(" ", behind)]
    return "".join((f"--- {name}\n+++ {name} (new)\n@@ {places} @@\n", *marked))


def _same(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of equal lines at the start of both sequences."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _range(first: int, count: int) -> str:
    return f"{first + 1 if count else first},{count}"


def _marked(sign: str, lines: Sequence[str]) -> list[str]:
    return [sign + (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n") for line in lines]


_BOM: Final = "\ufeff"
_PRIVATE: Final = 0o600
"""The permissions of new files, which only the user can read because entries may contain keys."""


class CannotChange(Exception):
    """A file couldn't be edited, and was left unchanged. The message is one line for the user."""


@frozen
class EditedFile:
    """A text file, with the contents that it had when it was read. Symbolic links in ``path`` are resolved."""

    path: Path
    data: bytes | None
    """The bytes of the file when it was last read, or `None` if there was no file."""

    @classmethod
    def read(cls, path: Path) -> EditedFile:
        """Read the file at ``path``. Raises `CannotChange` if the file can't be read or isn't a regular file.

        Also raises `CannotChange` if ``path`` is a link into a directory that doesn't exist, for example because a disk
        isn't mounted.
        """
        real = Path(os.path.realpath(path))
        for place in (path := path.absolute(), *path.parents):
            # A link to a file that doesn't exist yet is allowed if the directory of that file exists.
            if place.is_symlink() and not (place.exists() or (place == path and real.parent.exists())):
                raise CannotChange(f"{place} is a link to {os.readlink(place)}, which does not exist")
        try:
            return cls(real, _content(real))
        except FileNotFoundError:
            return cls(real, None)
        except OSError as error:
            raise CannotChange(f"{real} cannot be read: {error.strerror}") from None

    @property
    def text(self) -> str:
        """The text of the file, without a byte order mark. Raises `CannotChange` if the text isn't UTF-8."""
        try:
            return (self.data or b"").decode("utf-8").removeprefix(_BOM)
        except UnicodeDecodeError as error:
            raise CannotChange(f"{self.path} is not valid UTF-8 at byte {error.start}") from None

    def write(self, text: str) -> Path | None:
        """Replace the file's text atomically. Returns the path of the backup with the old text, or `None` if there was
        no old file.

        Permissions are preserved. Missing directories are created. Raises `CannotChange`, and leaves the file
        unchanged, if writing fails or if the file was changed since it was read.
        """
        mark = _BOM if self.data is not None and self.data.startswith(_BOM.encode()) else ""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if EditedFile.read(self.path).data != self.data:
                raise CannotChange(f"{self.path} was changed by another program in the meantime; try again")
            mode = _PRIVATE if self.data is None else stat.S_IMODE(self.path.stat().st_mode)
            backup = None if self.data is None else self._backed_up(self.data, mode)
            self._replace((mark + text).encode(), mode)
        except OSError as error:
            raise CannotChange(f"{self.path} cannot be written: {error.strerror}") from None
        return backup

    def _backed_up(self, data: bytes, mode: int) -> Path:
        """Copy the old file to an unused name in the same directory as a backup, and return the copy's path."""
        for number in count():
            backup = self.path.with_name(f"{self.path.name}.bak{number or ''}")
            try:
                descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
            except FileExistsError:
                continue
            _fill(descriptor, data, mode)
            return backup
        raise AssertionError("unreachable: there is always an unused number for a backup")

    def _replace(self, data: bytes, mode: int) -> None:
        descriptor, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            _fill(descriptor, data, mode)
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise


def _content(path: Path) -> bytes:
    """Return the bytes of a regular file. Refuses all other files, since reading a named pipe, for example, might never
    end."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise CannotChange(f"{path} is not a regular file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise CannotChange(f"{path} has more than {_MOST_BYTES:,} bytes")
    return data


def _fill(descriptor: int, data: bytes, mode: int) -> None:
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
