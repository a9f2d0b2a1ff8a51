"""Placeholders in configuration files: `expanded_text` replaces ``${NAME}`` by the variable's value, as shells do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_HEAD: Final = r"\$\{(?:(\w++):(?![-+?=]))?+(\w[^:${}+?=\0-]*+)(\}|:?[-+?=])"
"""The beginning of a placeholder: the kind, if given; the name; the operator, or a closing brace."""
_INNERMOST: Final = re.compile(rf"{_HEAD}(?:(?<=\}})|((?:(?!{_HEAD})[^}}])*+)\}})")
"""A placeholder with no other one in its default."""
_MARK: Final = re.compile(r"\0([0-9]+)\0")
"""The number of a value, in the place of its placeholder."""
_DEEPEST: Final = 20
"""Levels of placeholders in defaults of others."""


def expanded_text(text: str, variables: Mapping[str, str]) -> str:
    """Return ``text`` with ``${NAME}`` and ``${env:NAME}`` replaced by values, and with the operators ``-``, ``=``,
    ``+`` and ``?`` of shells, each with ``:`` before it or without. Takes linear time.

    Raises `ValueError` for a variable that isn't set, and for a placeholder of another kind.
    """
    if "\0" in text:
        raise ValueError("it must not have a NUL")
    values: list[tuple[str, str | None]] = []

    def filled(text: str) -> tuple[str, str | None]:
        """Return ``text`` with its values, and the reason why it has none."""
        reasons = [values[int(number)][1] for number in _MARK.findall(text)]
        return _MARK.sub(lambda mark: values[int(mark[1])][0], text), next(filter(None, reasons), None)

    def value_of(found: re.Match[str]) -> tuple[str, str | None]:
        kind, name, operator, word = found.groups("")[:4]
        value = variables.get(name)
        is_set = value is not None and (value != "" or operator[0] != ":")
        if kind not in ("", "env"):
            return "", f"only its host knows what {filled(found[0])[0]} stands for"
        if operator[-1] in ("+" if is_set else "-="):
            return filled(word)
        if is_set or operator[-1] == "+":
            return "" if operator[-1] == "+" else value or "", None
        return "", f"there is no variable {name}" if value is None else f"the variable {name} is empty"

    def marked(found: re.Match[str]) -> str:
        values.append(value_of(found))
        return f"\0{len(values) - 1}\0"

    for _ in range(_DEEPEST + 2):
        text, count = _INNERMOST.subn(marked, text)
        if not count:
            break
    else:
        raise ValueError("its placeholders are nested too deeply")
    expanded, reason = filled(text)
    if reason is not None:
        raise ValueError(reason)
    return expanded
