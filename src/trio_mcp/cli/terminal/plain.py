"""What others have written, made harmless for a terminal."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["on_one_line", "printable"]

# Control characters move the cursor and rename windows; the others turn the direction of text around.
_UNWANTED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """``text`` with every character replaced that a terminal would obey. Line ends and tabs stay."""
    return _UNWANTED.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def on_one_line(text: str, most: int = 200) -> str:
    """The first line of ``text`` that says something, `printable`, cut to ``most`` characters."""
    line = next((line.strip() for line in printable(text).splitlines() if line.strip()), "")
    return line if len(line) <= most else line[: most - 1] + "…"
