"""Docstrings begin with a subject or a verb: a reader who meets one alone need not guess what its first word means."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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


def docstrings() -> Iterator[tuple[str, str]]:
    """Where each docstring of the package stands, those of attributes included, and its first line."""
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            body: object = getattr(node, "body", None)
            for statement in body if isinstance(body, list) else ():  # a lambda has an expression there
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield f"{file.relative_to(SOURCE)}:{statement.lineno}", text.strip().partition("\n")[0]


def test_first_lines_of_docstrings_begin_with_no_pronoun_and_no_question_word() -> None:
    lines = list(docstrings())
    guesses = [f"{place}: {line}" for place, line in lines if line.split(" ")[0].rstrip(".,:;").lower() in GUESSES]
    assert len(lines) > 1000, "they were looked for in the right place"
    assert len(guesses) < MOST * len(lines), "\n".join(guesses)
