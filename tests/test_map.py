"""The pages about the code name packages, modules and rulings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trio_mcp

ROOT = Path(__file__).parent.parent
PACKAGE = Path(trio_mcp.__file__).parent
MAP = (ROOT / "docs" / "map.md").read_text()
RULINGS = [
    int(number)
    for number in re.findall(r"^### (\d+)\. ", (ROOT / "docs" / "rulings.md").read_text(), flags=re.MULTILINE)
]
PATHS = sorted({path for path in re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", MAP) if "/" in path})


@pytest.mark.parametrize("path", PATHS)
def test_source_path_on_the_code_map_page_exists_in_the_repository(path: str) -> None:
    assert (PACKAGE / path).exists() or (ROOT / path).exists()


def test_each_package_is_on_the_code_map() -> None:
    packages = {each.name for each in PACKAGE.iterdir() if (each / "__init__.py").exists()}
    assert {package for package in packages if f"`{package}/" not in MAP} == set()


def test_each_module_of_the_runtime_requests_package_is_on_the_code_map() -> None:
    modules = {module.name for module in (PACKAGE / "runtime" / "requests").glob("[a-z]*.py")}
    assert {module for module in modules if f"`{module}`" not in MAP} == set()


@pytest.mark.parametrize("page", ["architecture", "map"])
def test_file_name_of_a_module_on_a_code_page_belongs_to_an_existing_module(page: str) -> None:
    names = set(re.findall(r"`(\w+\.py)`", (ROOT / "docs" / f"{page}.md").read_text()))
    assert {name for name in names if not any(PACKAGE.rglob(name))} == set()


@pytest.mark.parametrize("page", ["architecture", "map"])
def test_class_named_on_a_code_page_exists(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    named = set(re.findall(r"`([A-Z]\w+[a-z]\w*)(?:\.\w+)?`", text))
    code = "\n".join(module.read_text() for module in PACKAGE.rglob("*.py"))
    assert named - set(re.findall(r"\w+", code)) == set()


@pytest.mark.parametrize("page", ["architecture", "rulings", "decisions", "guarantees/known-limitations"])
def test_source_path_named_on_a_code_page_exists(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    paths = set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+\.py)`", text))
    assert {path for path in paths if not ((PACKAGE / path).exists() or (ROOT / path).exists())} == set()


def test_each_package_is_listed_in_the_layers_on_the_architecture_page() -> None:
    layers = (ROOT / "docs" / "architecture.md").read_text().split("\n## Layers\n")[1].split("\n## ")[0]
    packages = {package.name for package in PACKAGE.iterdir() if (package / "__init__.py").exists()}
    assert {package for package in packages if f"`{package}/`" not in layers} == set()


def test_rule_numbers_on_the_rulings_page_are_consecutive() -> None:
    assert sorted(RULINGS) == list(range(1, len(RULINGS) + 1))


def test_rules_cited_by_number_in_source_and_tests_exist_on_the_rulings_page() -> None:
    files = [file for folder in ("src", "tests") for file in (ROOT / folder).rglob("*.py")]
    lists = {file: re.findall(r"(?i)\brulings?\s+(\d+(?:(?:,| and| to)\s+\d+)*)", file.read_text()) for file in files}
    cited = {
        file: {int(number) for each in found for number in re.findall(r"\d+", each)} for file, found in lists.items()
    }
    assert any(cited.values())
    assert {file.name: numbers for file, numbers in cited.items() if not numbers <= set(RULINGS)} == {}
