"""Lanes: what `pytest` alone leaves out, and that what starts commands is in its lane."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.lanes import COMMANDS, LANES, SCHEDULES, STARTS_FEW, TESTS, lane_of, leaves_out, leaves_out_test

STARTING = re.compile(
    r"\b(subprocess\.(run|Popen)|open_process|run_process|pytester\.run\w+|in_terminal)\(|\bserving\(\s*tmp_path"
)


def config(lane: str, *arguments: str) -> Any:
    options = {"lane": lane}
    return SimpleNamespace(
        getoption=options.__getitem__, args=list(arguments), invocation_params=SimpleNamespace(dir=TESTS.parent)
    )


@pytest.mark.parametrize(
    ("lane", "left_out"), [("quick", True), ("commands", False), ("schedules", True), ("all", False)]
)
def test_pytest_lane_option_runs_only_the_test_files_of_that_lane_and_lane_all_runs_every_file(
    lane: str, left_out: bool
) -> None:
    assert leaves_out(TESTS / "cli" / "test_demo.py", config(lane, "tests")) is left_out


@pytest.mark.parametrize(
    ("lane", "marks", "left_out"),
    [
        ("quick", [], False),
        ("quick", ["commands"], True),
        ("quick", ["schedules"], True),
        ("commands", [], True),
        ("commands", ["commands"], False),
        ("schedules", ["commands"], True),
        ("all", ["commands"], False),
    ],
)
def test_test_with_a_lane_mark_runs_in_that_lane(lane: str, marks: list[str], left_out: bool) -> None:
    item: Any = SimpleNamespace(path=TESTS / "test_lanes.py", get_closest_marker=set(marks).__contains__)
    assert leaves_out_test(item, config(lane, "tests")) is left_out
    assert not leaves_out_test(item, config(lane, "tests/test_lanes.py"))


def test_file_with_a_marked_test_is_collected_in_the_lane_of_the_mark() -> None:
    assert not leaves_out(TESTS / "test_otel.py", config("commands", "tests"))
    assert leaves_out(TESTS / "test_otel.py", config("schedules", "tests"))


def test_file_named_on_the_command_line_runs_in_any_lane() -> None:
    demo = TESTS / "cli" / "test_demo.py"
    assert not leaves_out(demo, config("quick", "tests/cli/test_demo.py"))
    assert not leaves_out(demo, config("quick", "tests/jsonrpc", "tests/cli/test_demo.py::test_x"))
    assert leaves_out(demo, config("quick", "tests/cli"))


def test_every_lane_option_value_collects_test_folders_and_helper_modules() -> None:
    assert not leaves_out(TESTS / "cli", config("schedules", "tests"))
    assert not leaves_out(TESTS / "cli" / "commands.py", config("schedules", "tests"))


def test_files_assigned_to_test_lanes_exist_and_are_in_one_lane() -> None:
    assert [file for file in LANES if not file.is_file()] == []
    assert set() == COMMANDS & SCHEDULES


def test_files_and_folders_named_in_the_ci_script_exist() -> None:
    named = re.findall(r"\btests/[\w/.]+", (TESTS.parent / ".ci" / "run").read_text(encoding="utf-8"))
    assert len(named) > 20
    assert [path for path in named if not (TESTS.parent / path).exists()] == []


def test_tests_that_start_processes_are_in_the_commands_lane_or_listed_as_exceptions() -> None:
    quick = {
        file.relative_to(TESTS).as_posix()
        for file in TESTS.rglob("test_*.py")
        if lane_of(file) == "quick" and not unwanted(file) and starts_in_quick(file.read_text(encoding="utf-8"))
    }
    assert quick == set(STARTS_FEW)


def starts_in_quick(text: str) -> bool:
    """Whether the text of a file starts commands outside of the tests that have the mark ``commands``."""
    return STARTING.search(text) is not None and any(
        STARTING.search(ast.get_source_segment(text, node) or "")
        for node in ast.parse(text).body
        if "pytest.mark.commands" not in map(ast.unparse, getattr(node, "decorator_list", []))
    )


def unwanted(file: Path) -> bool:
    """Whether pytest finds ``file`` only where its folder is named."""
    folders = file.relative_to(TESTS).parts[:-1]
    text = (TESTS.parent / "pyproject.toml").read_text(encoding="utf-8")
    names = set(re.findall(r'"([^"]+)"', text.split("norecursedirs = [")[1].split("]")[0]))
    return not names.isdisjoint(folders)
