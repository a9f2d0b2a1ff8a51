"""What can be imported says what it is."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.public import FACE, NAMESPACES, module, names

import trio_mcp

THINGS = {f"{space}.{name}": thing for space in NAMESPACES for name, thing in names(space).items()}
SPOKEN_OF = {name: thing for name, thing in THINGS.items() if inspect.isfunction(thing) or inspect.isclass(thing)}


def ours(thing: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, but for those that Python gives it."""
    for base in inspect.getmro(thing) if inspect.isclass(thing) else ():
        if base.__module__.startswith("trio_mcp."):
            for name, member in vars(base).items():
                member = getattr(member, "__func__", member)
                if name[0] != "_" and (inspect.isfunction(member) or isinstance(member, property)):
                    yield name, getattr(thing, name)


@pytest.mark.parametrize("space", NAMESPACES)
def test_each_public_name_is_listed_once(space: str) -> None:
    assert len(set(module(space).__all__)) == len(module(space).__all__)


def test_each_public_name_is_exported_by_only_one_public_module() -> None:
    assert len(names(*FACE)) == sum(len(module(space).__all__) for space in FACE)


def test_top_level_package_exports_at_most_90_names() -> None:
    assert len(trio_mcp.__all__) <= 90
    assert len(Path(str(trio_mcp.__file__)).read_text().splitlines()) <= 150


@pytest.mark.parametrize("space", FACE)
def test_lazy_imports_match_the_imports_for_type_checkers(space: str) -> None:
    tree = ast.parse(Path(str(module(space).__file__)).read_text())
    (block,) = (each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING")
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    table = {f"{'.' * each.level}{each.module}": {name.name for name in each.names} for each in imports}
    assert table == {name: set(text.split()) for name, text in module(space)._NAMES.items()}
    assert {name for listed in table.values() for name in listed} == set(module(space).__all__)


@pytest.mark.parametrize("name", sorted(names(*FACE[1:])))
def test_name_imported_from_the_wrong_namespace_raises_an_error_with_the_import_to_write(name: str) -> None:
    (space,) = (each for each in FACE if name in module(each).__all__)
    with pytest.raises(AttributeError, match=rf"^trio_mcp has no {name}; write from {space} import {name}$"):
        getattr(trio_mcp, name)


@pytest.mark.parametrize("name", sorted(SPOKEN_OF))
def test_each_public_object_and_attribute_has_a_docstring(name: str) -> None:
    thing = SPOKEN_OF[name]
    assert inspect.getdoc(thing)
    assert [member for member, value in ours(thing) if not inspect.getdoc(value)] == []
