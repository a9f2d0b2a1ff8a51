"""The rooms of the package: a reader finds each by its name, and by the sentence at its door."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "trio_mcp"

ROOMS = sorted(file.parent for file in PACKAGE.rglob("__init__.py"))


def name(room: Path) -> str:
    return room.relative_to(PACKAGE.parent).as_posix()


@pytest.mark.parametrize("room", ROOMS, ids=name)
def test_package_docstring_begins_with_a_sentence(room: Path) -> None:
    said = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    sentence = said.partition("\n\n")[0]
    assert sentence.endswith("."), "it has one, in a paragraph of its own"
    assert len(sentence.split()) >= 4, sentence


def test_every_folder_with_modules_is_a_package() -> None:
    assert {file.parent for file in PACKAGE.rglob("*.py")} == set(ROOMS)


UPWARDS = sorted(
    {
        pair
        for contract in tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"][
            "contracts"
        ]
        for pair in contract.get("ignore_imports", ())
        if "*" not in pair
    }
)
"""The imports that point upwards, as the contracts name them."""


@pytest.mark.parametrize("pair", UPWARDS)
def test_package_imports_from_a_higher_layer_only_for_type_checking(pair: str) -> None:
    importer, imported = pair.split(" -> ")
    path = PACKAGE.parent / importer.replace(".", "/")
    if path.is_dir():
        path, importer = path / "__init__", f"{importer}.__init__"
    tree = ast.parse(path.with_suffix(".py").read_text())
    for_types = {
        node
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    found = {
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and absolute(node, importer) == imported
    }
    assert found
    assert found <= for_types


def absolute(node: ast.ImportFrom, importer: str) -> str:
    room = importer.split(".")[: -node.level]
    return ".".join([*room, node.module or ""])


def test_each_folder_of_tests_has_the_name_of_a_package_folder() -> None:
    tests = Path(__file__).parent
    folders = {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")}
    of_rooms = {folder for folder in folders if folder.parts and (PACKAGE / folder.parts[0]).is_dir()}
    assert {folder.as_posix() for folder in of_rooms if not (PACKAGE / folder).is_dir()} == set()
