"""What `docs/map.md` says of the rooms is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trio_mcp

ROOT = Path(__file__).parent.parent
PACKAGE = Path(trio_mcp.__file__).parent
MAP = (ROOT / "docs" / "map.md").read_text()
PATHS = sorted({path for path in re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", MAP) if "/" in path})


@pytest.mark.parametrize("path", PATHS)
def test_a_path_on_the_map_leads_to_a_room_or_a_module(path: str) -> None:
    assert (PACKAGE / path).exists() or (ROOT / path).exists()


def test_each_room_is_on_the_map() -> None:
    rooms = {room.name for room in PACKAGE.iterdir() if (room / "__init__.py").exists()}
    assert {room for room in rooms if f"`{room}/" not in MAP} == set()


def test_each_module_that_runs_requests_is_on_the_map() -> None:
    modules = {module.name for module in (PACKAGE / "runtime" / "requests").glob("[a-z]*.py")}
    assert {module for module in modules if f"`{module}`" not in MAP} == set()


def test_each_path_in_the_design_leads_to_a_room_or_a_module() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    paths = set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+\.py)`", text))
    assert {path for path in paths if not ((PACKAGE / path).exists() or (ROOT / path).exists())} == set()
