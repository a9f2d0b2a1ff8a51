"""The rooms of the package: a reader finds each by its name, and by the sentence at its door."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "trio_mcp"

ROOMS = sorted(file.parent for file in PACKAGE.rglob("__init__.py"))


def name(room: Path) -> str:
    return room.relative_to(PACKAGE.parent).as_posix()


@pytest.mark.parametrize("room", ROOMS, ids=name)
def test_a_room_says_in_a_sentence_what_a_reader_finds_there(room: Path) -> None:
    said = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    sentence = said.partition("\n\n")[0]
    assert sentence.endswith("."), "it has one, in a paragraph of its own"
    assert len(sentence.split()) >= 4, sentence


def test_every_folder_with_modules_is_a_room() -> None:
    assert {file.parent for file in PACKAGE.rglob("*.py")} == set(ROOMS)
