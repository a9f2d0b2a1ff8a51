"""Docstrings begin with a subject or a verb, and say nouns: a reader who meets one alone need not guess any word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"

GUESSES = frozenset(
    (
        *("what", "who", "whose", "whom", "which", "whether", "where", "when", "why", "how"),
        *("it", "its", "that", "those", "these", "this", "they", "them", "their", "he", "she", "his", "her"),
        *("one", "all", "none", "nothing", "nobody", "somebody", "anybody", "everybody", "both", "each", "such"),
    )
)
"""Pronouns and question words."""

MOST = 0.03
"""The share of docstrings that may begin with one all the same: of commands and tools, they are texts for users."""

PRONOUNS = frozenset(
    ("it", "they", "them", "those", "these", "what", "whatever", "whoever", "whose", "he", "she", "him")
)
"""Words that stand for a noun and for nothing else, so that counting them needs no grammar."""

MOST_PRONOUNS = 0.01
"""The share of words that may be pronouns, over all docstrings. The docstrings of trio have 1.6 %."""


@cache
def docstrings() -> tuple[tuple[str, str], ...]:
    """Where each docstring of the package stands, those of attributes included, and its text."""
    return tuple(_docstrings())


def _docstrings() -> Iterator[tuple[str, str]]:
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            body: object = getattr(node, "body", None)
            for statement in body if isinstance(body, list) else ():  # a lambda has an expression there
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield f"{file.relative_to(SOURCE)}:{statement.lineno}", text.strip()


def test_first_lines_of_docstrings_begin_with_no_pronoun_and_no_question_word() -> None:
    lines = [(place, text.partition("\n")[0]) for place, text in docstrings()]
    guesses = [f"{place}: {line}" for place, line in lines if line.split(" ")[0].rstrip(".,:;").lower() in GUESSES]
    assert len(lines) > 1000, "they were looked for in the right place"
    assert len(guesses) < MOST * len(lines), "\n".join(guesses)


def words_of(text: str) -> list[str]:
    """The words of a docstring without its code."""
    return re.findall(r"[a-z][a-z'’-]*", re.sub(r"``[^`]*``|`[^`]*`", " ", text).lower())


def test_docstrings_say_nouns_rather_than_pronouns() -> None:
    words = {place: words_of(text) for place, text in docstrings()}
    pronouns = {place: sum(word in PRONOUNS for word in found) for place, found in words.items()}
    share = sum(pronouns.values()) / sum(map(len, words.values()))
    worst = sorted(pronouns, key=lambda place: pronouns[place], reverse=True)[:20]
    assert share < MOST_PRONOUNS, "\n".join(f"{place}: {pronouns[place]} of {len(words[place])}" for place in worst)
