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
def test_lane_option_of_pytest_selects_which_test_files_run(lane: str, left_out: bool) -> None:
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
def test_marked_test_runs_only_if_the_lane_option_selects_the_marked_group(
    lane: str, marks: list[str], left_out: bool
) -> None:
    item: Any = SimpleNamespace(path=TESTS / "test_lanes.py", get_closest_marker=set(marks).__contains__)
    assert leaves_out_test(item, config(lane, "tests")) is left_out
    assert not leaves_out_test(item, config(lane, "tests/test_lanes.py"))


def test_test_file_with_a_marked_test_is_collected_if_the_lane_option_selects_the_mark() -> None:
    assert not leaves_out(TESTS / "test_otel.py", config("commands", "tests"))
    assert leaves_out(TESTS / "test_otel.py", config("schedules", "tests"))


def test_test_file_named_on_the_command_line_runs_whatever_the_lane_option_selects() -> None:
    demo = TESTS / "cli" / "test_demo.py"
    assert not leaves_out(demo, config("quick", "tests/cli/test_demo.py"))
    assert not leaves_out(demo, config("quick", "tests/jsonrpc", "tests/cli/test_demo.py::test_x"))
    assert leaves_out(demo, config("quick", "tests/cli"))


def test_folders_and_helper_modules_are_collected_whatever_the_lane_option_selects() -> None:
    assert not leaves_out(TESTS / "cli", config("schedules", "tests"))
    assert not leaves_out(TESTS / "cli" / "commands.py", config("schedules", "tests"))


def test_each_test_file_assigned_to_a_lane_of_tests_exists() -> None:
    assert [file for file in LANES if not file.is_file()] == []
    assert set() == COMMANDS & SCHEDULES


def test_files_and_folders_named_in_the_ci_script_exist() -> None:
    named = re.findall(r"\btests/[\w/.]+", (TESTS.parent / ".ci" / "run").read_text(encoding="utf-8"))
    assert len(named) > 20
    assert [path for path in named if not (TESTS.parent / path).exists()] == []


def test_test_files_that_start_processes_do_not_run_in_the_quick_lane_unless_listed() -> None:
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
