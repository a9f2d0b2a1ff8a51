"""clean makes the words of a peer fit for errors and logs."""

from __future__ import annotations


def clean(text: str) -> str:
    """Return ``text`` with a blank in the place of each other white space, line ends included, and a replacement
    character in the place of all else that cannot be printed: control characters such as ESC, directions of writing,
    lone surrogates. So nobody can forge a line of a log, or give orders to a terminal. To be used where words of a peer
    enter an error or a log record."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else " " if each.isspace() else "\N{REPLACEMENT CHARACTER}" for each in text
    )
