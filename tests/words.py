"""How the documentation reads: ``python -m tests.words [--worst N]``.

Counts phrases that made readers stop, per 1,000 words of the pages, and of the docstrings and error texts. Then prints
the N sentences (10 by default) with the most of them. It warns: a figure above its limit is marked with ``!``, and the
exit status is always 0. A sentence that needs a second read is a defect, with or without such a phrase.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Phrase:
    """An expression, and how often it may occur in 1,000 words."""

    expression: re.Pattern[str]
    limit: float


def phrase(expression: str, limit: float) -> Phrase:
    return Phrase(re.compile(expression, re.MULTILINE), limit)


PHRASES = {
    "told/asked": phrase(r"\b(?:told|tells?|telling|asked|asks)\b", 0.2),
    "nobody & co.": phrase(r"\b(?:nobody|somebody|whoever|everybody|anybody|nothing but)\b", 0.1),
    "Who/What/Where first": phrase(r"(?:^|(?<=[.:;] ))(?:Who|Whoever|What|Where|Whose)\b(?![^.]*\?)", 0.5),
    "semicolons": phrase(r";", 4.0),
    "that of/those of": phrase(r"\b(?:that|those) of\b", 0.2),
    ", too": phrase(r", too\b", 0.2),
    "is no/has none": phrase(r"\b(?:is|are|was|has|have) (?:no|none)\b", 0.4),
    "calques": phrase(
        r"\b(?:makes no sense|goes on|go on|and its like|and the like|unless said|anew|mends?|mended|at a time"
        r"|by itself|in good order|comes to nothing|stands in|holds for|for so long)\b",
        0.1,
    ),
}
CODE = re.compile(r"`[^`\n]*`")


def prose(markdown: str) -> str:
    """Return the sentences of a page, without its code, tables, HTML and link targets."""
    text = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    lines = (line for line in text.splitlines() if not line.lstrip().startswith(("|", "<", "    ")))
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", CODE.sub("x", "\n".join(lines)))


def strings(source: str) -> str:
    """Return the docstrings and error texts of a module."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                found.append(text)
            case ast.Raise(ast.Call(args=arguments)):
                found += filter(None, map(text_of, arguments))
            case _:
                pass
    return "\n\n".join(CODE.sub("x", text) for text in found)


def text_of(argument: ast.expr) -> str:
    """Return the text of a string or f-string, with ``x`` for each inserted value."""
    match argument:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
        case _:
            return ""


def sentences(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n|\n(?=[-*#\d])", text):
        for sentence in re.split(r"(?<=[.!?]) +(?=[A-Z`])", " ".join(block.split())):
            if len(sentence.split()) > 3:
                yield sentence


def frequencies(texts: list[str]) -> dict[str, float]:
    """Return how often each phrase occurs in 1,000 words."""
    words = sum(len(text.split()) for text in texts)
    return {
        name: 1000 * sum(len(each.expression.findall(text)) for text in texts) / max(words, 1)
        for name, each in PHRASES.items()
    }


def worst(texts: dict[Path, str], count: int) -> Iterator[tuple[Path, str]]:
    """Yield the sentences with the most phrases for their length, each with its file."""
    ranked: list[tuple[float, Path, str]] = []
    for path, text in texts.items():
        for sentence in sentences(text):
            hits = sum(len(each.expression.findall(sentence)) for name, each in PHRASES.items() if name != "semicolons")
            if hits:
                ranked.append((hits / (5 + len(sentence.split())), path, sentence))
    ranked.sort(key=lambda each: -each[0])
    yield from ((path, sentence) for _, path, sentence in ranked[:count])


def report(title: str, texts: dict[Path, str], count: int) -> Iterator[str]:
    """Yield the lines of the report on ``texts``."""
    found = frequencies(list(texts.values()))
    figures = [f"{name} {each:.2f}{'!' * (each > PHRASES[name].limit)}" for name, each in found.items()]
    yield f"{title}, per 1,000 of {sum(len(text.split()) for text in texts.values()):,} words: {', '.join(figures)}"
    for path, sentence in worst(texts, count):
        yield f"  {path.relative_to(ROOT)}: {sentence[:150]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Report phrases that make readers stop.")
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="number of sentences to print")
    count = parser.parse_args().worst
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    modules = sorted((ROOT / "src").rglob("*.py"))
    for title, texts in (
        ("pages", {path: prose(path.read_text("utf-8")) for path in pages}),
        ("docstrings and errors", {path: strings(path.read_text("utf-8")) for path in modules}),
    ):
        print("\n".join(report(title, texts, count)))


if __name__ == "__main__":
    main()
