"""The asyncio and blocking classes have the members of the trio classes."""

from __future__ import annotations

import inspect
from inspect import getattr_static
from typing import Any

import pytest
from tests.public import FACE, names

from trio_mcp import aio, blocking
from trio_mcp.classes import Renamed

FOR_CODE_THAT_OPENS_AND_FORWARDS = {
    "Group": {"close", "pins", "present", "reconnect_as_legacy"},
    "Catalogue": {
        *(
            "add",
            "check_pins",
            "close",
            "find",
            "has_any",
            "known",
            "may_name",
            "name_of",
            "remove",
            "replace",
            "show",
            "tool_name",
        )
    },
    "Changes": {"run"},
}
CLASSES = ["Catalogue", "Changes", "Client", "Group", "GroupTask", "LoadedSkill", "RunningTask"]


def public(kind: Any) -> set[str]:
    return {name for name in dir(kind) if name[0] != "_" and not isinstance(getattr_static(kind, name), Renamed)}


@pytest.mark.parametrize("world", [aio, blocking], ids=lambda world: world.__name__)
@pytest.mark.parametrize("name", CLASSES)
def test_asyncio_and_blocking_classes_have_the_same_attributes_as_the_trio_classes(world: Any, name: str) -> None:
    original, view = names(*FACE)[name], getattr(world, name)
    assert public(original) - FOR_CODE_THAT_OPENS_AND_FORWARDS.get(name, set()) <= public(view)
    for member in public(view) & public(original):
        method = inspect.getattr_static(original, member)
        if inspect.isfunction(method):
            given = inspect.getattr_static(view, member)
            assert inspect.signature(given) == inspect.signature(method), member
            assert inspect.getdoc(given) == inspect.getdoc(method), member


@pytest.mark.parametrize("world", [aio, blocking], ids=lambda world: world.__name__)
def test_asyncio_and_blocking_modules_have_the_same_open_functions_as_the_trio_package(world: Any) -> None:
    ours = {name for name in names(*FACE) if name.startswith("open_")} - {"open_client", "open_process_tree"}
    assert ours == {name for name in world.__all__ if name.startswith("open_")}
