"""JSON files of hosts: with comments and trailing commas, and with the names that an object has several times."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

_MAX_CHARACTERS: Final = 16 * 1024 * 1024
"""Maximum characters of a file. A configuration file may come from a cloned repository."""


def read_json(path: Path) -> Any:
    """Return the value in a file of JSON with comments, as VS Code and others write; of a blank file, an empty object.
    Raises `OSError`, `ValueError` and `RecursionError`."""
    with path.open(encoding="utf-8-sig") as file:
        text = file.read(_MAX_CHARACTERS + 1)
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"it has more than {_MAX_CHARACTERS:,} characters")
    if not text.strip():  # as some hosts leave it before the first server
        return {}
    return json.loads(without_trailing_commas(without_comments(text)), object_pairs_hook=_object)


class _Repeating(dict[str, Any]):
    """A JSON object that has some names several times. The last value counts, as for hosts."""

    twice: dict[str, int]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        values = _Repeating(values)
        values.twice = {name: times for name, times in Counter(name for name, _ in pairs).items() if times > 1}
    return values


def names_given_twice(value: Any) -> dict[str, int]:
    """Return the names that a value of `read_json`, if it is an object, has several times, with the numbers."""
    return value.twice if isinstance(value, _Repeating) else {}


# Each pattern also matches an unterminated string or comment, up to the end of the line or text. Otherwise the search
# would read the rest again from each of its parts.
_STRING: Final = r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?'
_COMMENT: Final = re.compile(rf"{_STRING}|//[^\r\n]*|/\*(?:.*?(?P<end>\*/)|.*)", re.DOTALL)
_TRAILING: Final = re.compile(rf"{_STRING}|,(?=[ \t\r\n]*[}}\]])")
_VISIBLE: Final = re.compile(r"[^\r\n]")


def without_comments(text: str) -> str:
    """Return ``text`` with ``//`` and ``/* */`` comments replaced by spaces, so that lines and columns stay the same.
    An unterminated comment stays."""

    def blank(found: re.Match[str]) -> str:
        is_comment = found[0].startswith("//") or found["end"] is not None
        return _VISIBLE.sub(" ", found[0]) if is_comment else found[0]

    return _COMMENT.sub(blank, text)


def without_trailing_commas(text: str) -> str:
    """Return ``text``, which has no comments, with spaces in place of commas after the last member of an object or
    array."""
    return _TRAILING.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)
