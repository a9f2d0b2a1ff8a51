"""`docs/errors.md` has every exception and every code, and each text that it has is one of the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from tests.pages import Page
from tests.public import FACE, names

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "errors.md").read_text()
CODES = ("jsonrpc.errors", "protocol.errors", "tasks.record_views")
"""The modules that name the codes of errors."""


def rows_of(section: str) -> list[list[str]]:
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    table = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


def told() -> Iterator[str]:
    """The texts of the page: those in the columns of that name."""
    for section in re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE)[:-1]:
        for row in rows_of(section):
            yield from re.findall(r"`([^`]+)`", row[1 if section == "Error codes" else 0])


@cache
def written() -> tuple[str, ...]:
    """All texts of the source but docstrings, with ``…`` for what is filled in."""
    texts: list[str] = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        found = (text_of(node) for node in nodes if id(node) not in docstrings)
        texts += [" ".join(re.sub(r"%[sdrg]|%\.?\d+[sr]", "…", text).split()) for text in found if text]
    return tuple(texts)


def text_of(node: ast.AST) -> str:
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(text_of(part) or "…" for part in parts)
        case _:
            return ""


def test_documented_list_of_exceptions_is_complete() -> None:
    errors = [each for each in names(*FACE).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert {row[0]: row[1] for row in rows_of("Exceptions")} == {
        f"`{error.__name__}`": ", ".join(f"`{base.__name__}`" for base in error.__bases__) for error in errors
    }


def test_documented_list_of_error_codes_is_complete() -> None:
    named = {int(code) for row in rows_of("Error codes") for code in re.findall(r"-\d+", row[0])}
    assert named == {
        value
        for module in CODES
        for name, value in vars(import_module(f"trio_mcp.{module}")).items()
        if name.isupper() and isinstance(value, int) and value < -30000
    }


@pytest.mark.parametrize("text", sorted(set(told())))
def test_error_text_on_the_errors_page_occurs_in_the_source(text: str) -> None:
    fragments = [part.strip() for part in text.split("…")]
    assert max(map(len, fragments)) > 7, "so short that it is found anywhere"
    wanted = re.compile(".*".join(map(re.escape, fragments)))
    assert any(wanted.search(each) for each in written())


async def test_errors_page_example_prints_the_documented_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page("errors.md")
    writing = page.write(tmp_path, monkeypatch)
    next(writing)
    await page.load("caught_error").main()
    next(writing, None)
    assert f"the program prints `{capsys.readouterr().out.strip()}`." in page.text
