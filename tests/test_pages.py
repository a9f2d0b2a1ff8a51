"""Kinds of mistakes that pages have had: headings twice, broken tables, extras that no table names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tests.public import NAMESPACES, module

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])
ROW, RULE = re.compile(r"^\|.*\|$"), re.compile(r"^\|(?:\s*:?-+:?\s*\|)+$")
each = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def prose(page: Path) -> str:
    """The text of the page, without its code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


@each
def test_documentation_page_has_no_duplicate_headings_under_the_same_parent(page: Path) -> None:
    found, above = list[tuple[str, ...]](), dict[int, str]()
    for marks, text in re.findall(r"^(#+) (.*)$", prose(page), flags=re.MULTILINE):
        above = {level: heading for level, heading in above.items() if level < len(marks)} | {len(marks): text}
        found.append(tuple(above.values()))
    assert len(found) == len(set(found)), [path for path in found if found.count(path) > 1]


@each
def test_each_markdown_table_has_a_header_and_equal_numbers_of_cells(page: Path) -> None:
    lines = prose(page).split("\n")
    for number, line in enumerate(lines):
        if not ROW.match(line) or ROW.match(lines[number - 1]):
            continue
        assert RULE.match(lines[number + 1]), f"a row outside of a table: {line}"
        rows = lines[number : next(i for i in range(number, len(lines) + 1) if i == len(lines) or not lines[i])]
        cells = {len(re.sub(r"\\\\.|\\\||`[^`]*`", "", row).split("|")) for row in rows}
        assert len(cells) == 1, line


IMPORT = re.compile(r"from (trio_mcp[\w.]*) import (\([^)]*\)|\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)")


@each
def test_names_imported_in_documentation_are_public(page: Path) -> None:
    imported = {
        (space, name)
        for space, names in IMPORT.findall(page.read_text())
        for name in re.findall(r"(?:^|[,(])\s*(\w+)", names)
    }
    public = {(space, name) for space in NAMESPACES for name in module(space).__all__}
    modules = {tuple(space.rsplit(".", 1)) for space in NAMESPACES if "." in space}
    assert imported - public - modules == set()


def test_documented_table_of_extras_is_complete() -> None:
    page = (ROOT / "docs/get-started/installation.md").read_text()
    named = {
        name
        for row in re.findall(r"^\| (`[a-z`, ]+) \|", page, flags=re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert named == set(extras)


def test_changelog_has_at_most_fifty_lines() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 50
