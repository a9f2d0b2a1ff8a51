"""What can be imported says what it is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import trio_mcp
import trio_mcp.otel
import trio_mcp.testing

MODULES = [trio_mcp, trio_mcp.otel, trio_mcp.testing]
THINGS = {name: getattr(module, name) for module in MODULES for name in module.__all__}
SPOKEN_OF = {name: thing for name, thing in THINGS.items() if inspect.isfunction(thing) or inspect.isclass(thing)}


def ours(thing: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, but for those that Python gives it."""
    for base in inspect.getmro(thing) if inspect.isclass(thing) else ():
        if base.__module__.startswith("trio_mcp."):
            for name, member in vars(base).items():
                member = getattr(member, "__func__", member)
                if name[0] != "_" and (inspect.isfunction(member) or isinstance(member, property)):
                    yield name, getattr(thing, name)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_each_name_is_said_once(module: ModuleType) -> None:
    assert len(set(module.__all__)) == len(module.__all__)


@pytest.mark.parametrize("name", sorted(SPOKEN_OF))
def test_each_thing_and_what_can_be_done_with_it_has_a_docstring(name: str) -> None:
    thing = SPOKEN_OF[name]
    assert inspect.getdoc(thing)
    assert [member for member, value in ours(thing) if not inspect.getdoc(value)] == []
