"""The README's examples and tables hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.patience import PATIENCE

import trio_mcp
from trio_mcp import REVISIONS, Limits, open_stdio

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", README, flags=re.DOTALL)


def rows_of(heading: str) -> list[list[str]]:
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_the_two_examples_run_together_as_they_stand(tmp_path: Path) -> None:
    for name, code in BLOCKS:
        (tmp_path / name).write_text(code)
    ran = subprocess.run(
        [sys.executable, "host.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "processed 2 items" in ran.stdout
    assert "Progress(progress=" in ran.stdout


def test_the_example_of_websockets_runs_as_it_stands(tmp_path: Path) -> None:
    for name, code in BLOCKS:
        (tmp_path / name).write_text(code)
    ran = subprocess.run(
        [sys.executable, "web.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "processed 2 items\n"), ran.stderr


def test_the_example_of_a_test_passes_as_it_stands(tmp_path: Path) -> None:
    for name, code in BLOCKS:
        (tmp_path / name).write_text(code)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "trio_mode=true", "test_batch.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout


def test_the_example_of_changes_runs_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "changes.py").write_text(dict(BLOCKS)["changes.py"])
    ran = subprocess.run(
        [sys.executable, "changes.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "resource the note a\n"), ran.stderr


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_example_that_asks_serves_both_eras(tmp_path: Path, era: Any) -> None:
    (tmp_path / "shop.py").write_text(dict(BLOCKS)["shop.py"])
    command = [sys.executable, "-m", "trio_mcp.cli", "run", str(tmp_path / "shop.py")]
    async with open_stdio(command, era=era, elicitation=lambda _: {"street": "Elm"}) as client:
        assert (await client.call_tool("order", {"item": "tea"})).text == "tea to Elm 1"


def test_the_example_of_many_servers_runs_as_it_stands(tmp_path: Path) -> None:
    for name, code in BLOCKS:
        (tmp_path / name).write_text(code)
    ran = subprocess.run(
        [sys.executable, "many.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "['batch__process_batch'] failed\nprocessed 2 items\n"), ran.stderr


def test_the_example_of_a_proxy_runs_as_it_stands(tmp_path: Path) -> None:
    for name, code in BLOCKS:
        (tmp_path / name).write_text(code)
    ran = subprocess.run(
        [sys.executable, "front.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "processed 2 items\n"), ran.stderr


@pytest.mark.parametrize(("name", "code"), BLOCKS)
def test_an_example_is_about_ten_lines(name: str, code: str) -> None:
    statements = [line for line in code.splitlines() if line.strip()]
    assert len(statements) <= 13, name


def test_the_table_of_limits_is_the_truth() -> None:
    defaults = {field.name: field.default for field in attrs.fields(Limits)}
    told = {re.match(r"`(\w+)`", row[0])[1]: float(row[1]) for row in rows_of("Limits")}  # type: ignore[index]
    assert told == defaults


def test_the_table_of_errors_has_all_that_can_be_caught() -> None:
    exported = [getattr(trio_mcp, name) for name in trio_mcp.__all__]
    errors = [each for each in exported if isinstance(each, type) and issubclass(each, Exception)]
    told = {row[0]: row[1] for row in rows_of("Errors")}
    assert told == {
        f"`{error.__name__}`": ", ".join(f"`{base.__name__}`" for base in error.__bases__) for error in errors
    }


def test_the_table_of_revisions_is_the_truth() -> None:
    for name, era, asks, batches, log_level, structured in rows_of("Revisions"):
        revision = REVISIONS[name]
        assert revision.handshake == (era == "legacy")
        assert revision.server_requests == (asks == "requests")
        assert revision.batches == (batches == "yes")
        assert revision.log_level == log_level
        assert revision.structured_content == structured
    assert [row[0] for row in rows_of("Revisions")] == list(REVISIONS)
