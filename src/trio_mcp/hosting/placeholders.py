"""Placeholders in configuration files: `expanded_text` replaces ``${NAME}`` by the variable's value, as shells do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

_TOKEN: Final = re.compile(r"\$\{(?:(\w++):(?![-+?=]))?+(\w[^:${}+?=-]*+)(\}|:?[-+?=])|\}")
"""A brace that may close a placeholder, or the beginning of a placeholder: the kind, if given; the name; the operator,
or a closing brace."""
_DEEPEST: Final = 50
"""Levels of placeholders in defaults of others."""


def expanded_text(text: str, variables: Mapping[str, str]) -> str:
    """Return ``text`` with ``${NAME}`` and ``${env:NAME}`` replaced by values, and with the operators ``-``, ``=``,
    ``+`` and ``?`` of shells, each with ``:`` before it or without. Takes linear time.

    Raises `ValueError` for a variable that isn't set, and for a placeholder of another kind.
    """
    expanded, problem, _ = _until_brace(text, 0, _TOKEN.finditer(text), variables, 0)
    if problem is not None:
        raise ValueError(problem)
    return expanded


def _until_brace(
    text: str, at: int, tokens: Iterator[re.Match[str]], variables: Mapping[str, str], level: int
) -> tuple[str, str | None, int | None]:
    """Return the text from ``at`` to the brace that closes the placeholder of this ``level``, expanded; the reason why
    it has no value, which counts only if the text is used; and the place after the brace, if there is one."""
    parts: list[str] = []
    problem: str | None = None
    for token in tokens:
        parts.append(text[at : token.start()])
        at = token.end()
        if token[0] == "}":
            if level:
                return "".join(parts), problem, at
            value, reason = "}", None
        elif token[3] == "}":
            value, reason = _value_of(token, token[0], "", None, variables)
        elif level == _DEEPEST:
            raise ValueError("its placeholders are nested too deeply")
        else:
            word, reason, end = _until_brace(text, at, tokens, variables, level + 1)
            value, at = token[0] + word, len(text) if end is None else end
            if end is not None:
                value, reason = _value_of(token, text[token.start() : at], word, reason, variables)
        parts.append(value)
        problem = problem or reason
    return "".join((*parts, text[at:])), problem, None


def _value_of(
    head: re.Match[str], placeholder: str, word: str, reason: str | None, variables: Mapping[str, str]
) -> tuple[str, str | None]:
    """Return the value of a closed placeholder with ``word`` after its operator, or the reason why it has none."""
    kind, name, operator = head.groups()
    if kind not in (None, "env"):
        return "", f"only its host knows what {placeholder} stands for"
    value = variables.get(name)
    is_set = value is not None and (value != "" or operator[0] != ":")
    if operator[-1] in ("+" if is_set else "-="):
        return word, reason
    if is_set or operator[-1] == "+":
        return "" if operator[-1] == "+" else value or "", None
    return "", f"there is no variable {name}" if value is None else f"the variable {name} is empty"
