"""Conversion of JSON with comments, as VS Code and others keep it, into JSON, with every position unchanged."""

from __future__ import annotations

import re
from typing import Final

_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT: Final = re.compile(rf"{_STRING}|//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING: Final = re.compile(rf"{_STRING}|,(?=[ \t\r\n]*[}}\]])")
_VISIBLE: Final = re.compile(r"[^\r\n]")


def without_comments(text: str) -> str:
    """Return ``text`` with spaces in place of ``//`` and ``/* */`` comments, so that lines and columns stay the
    same."""
    return _COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else _VISIBLE.sub(" ", found[0]), text)


def without_trailing_commas(text: str) -> str:
    """Return ``text``, which has no comments, with spaces in place of commas after the last member of an object or
    array."""
    return _TRAILING.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)
