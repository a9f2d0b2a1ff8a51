"""Placeholders in configuration files: `expanded_text` replaces ``${NAME}`` by the variable's value, as shells do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import attrs

from ..classes import define

_TOKEN: Final = re.compile(r"\$\{(?:(\w++):(?![-+?=]))?+(\w[^:${}+?=-]*+)(\}|:?[-+?=])|\}")
"""A brace that may close a placeholder, or the beginning of a placeholder: the kind, if given; the name; the operator,
or a closing brace."""
_DEEPEST: Final = 50
"""Levels of placeholders in defaults of others."""


@define(eq=False)
class _Part:
    """A placeholder that isn't closed yet, with the text after its operator; or the whole text."""

    head: re.Match[str] | None
    texts: list[str] = attrs.field(factory=list[str])
    problem: str | None = None
    """Reason why the text has no value. Counts only if the text is used."""


def expanded_text(text: str, variables: Mapping[str, str]) -> str:
    """Return ``text`` with ``${NAME}`` and ``${env:NAME}`` replaced by values, and with the operators ``-``, ``=``,
    ``+`` and ``?`` of shells, each with ``:`` before it or without. Takes linear time.

    Raises `ValueError` for a variable that isn't set, and for a placeholder of another kind.
    """
    parts = [_Part(None)]
    at = 0
    for token in _TOKEN.finditer(text):
        parts[-1].texts.append(text[at : token.start()])
        at = token.end()
        head, part = token, None
        if token[0] == "}":
            if (head := parts[-1].head) is None:
                parts[-1].texts.append("}")
                continue
            part = parts.pop()
        elif token[3] != "}":
            if len(parts) > _DEEPEST:
                raise ValueError("its placeholders are nested too deeply")
            parts.append(_Part(token))
            continue
        value, problem = _value_of(head, part, text[head.start() : at], variables)
        parts[-1].texts.append(value)
        parts[-1].problem = parts[-1].problem or problem
    parts[-1].texts.append(text[at:])
    for part in parts:  # all but the first are not closed, which makes them text
        if part.problem is not None:
            raise ValueError(part.problem)
    return "".join(text for part in parts for text in ("" if part.head is None else part.head[0], *part.texts))


def _value_of(
    head: re.Match[str], part: _Part | None, placeholder: str, variables: Mapping[str, str]
) -> tuple[str, str | None]:
    """Return the value of a closed placeholder, or the reason why it has none."""
    kind, name, operator = head.groups()
    if kind not in (None, "env"):
        return "", f"only its host knows what {placeholder} stands for"
    value = variables.get(name)
    is_set = value is not None and (value != "" or operator[0] != ":")
    if part is not None and operator[-1] in ("+" if is_set else "-="):
        return "".join(part.texts), part.problem
    if operator[-1] == "+":
        return "", None
    if is_set:
        return value or "", None
    return "", f"there is no variable {name}" if value is None else f"the variable {name} is empty"
