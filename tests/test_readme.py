"""The README's examples, commands and table hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", README, flags=re.DOTALL)


def test_the_page_has_less_than_200_lines() -> None:
    assert len(README.splitlines()) < 200


def test_the_two_examples_run_together_as_they_stand(tmp_path: Path) -> None:
    for name, code in BLOCKS:
        (tmp_path / name).write_text(code)
    ran = subprocess.run(
        [sys.executable, "host.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "processed 2 items" in ran.stdout
    assert "Progress(progress=" in ran.stdout


def test_each_example_is_a_whole_file_with_a_name_of_its_own() -> None:
    assert README.count("```python") == len(BLOCKS) == len(dict(BLOCKS))


@pytest.mark.parametrize(("name", "code"), BLOCKS)
def test_an_example_is_about_ten_lines(name: str, code: str) -> None:
    statements = [line for line in code.splitlines() if line.strip()]
    assert len(statements) <= 13, name


def test_what_is_printed_to_try_it_begins_with_a_clone_and_ends_with_the_demo() -> None:
    demo, tests = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    assert demo.splitlines()[1:] == ["pip install '.[cli]'", "trio-mcp demo"]
    assert tests.splitlines() == ["pip install -e '.[dev]'", "pytest -n 3"]
    assert README.index("`git clone`") < README.index("```sh")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_beside_peers_has_the_figures_of_the_benchmarks() -> None:
    results = (ROOT / "benchmarks" / "README.md").read_text().split("<!-- results -->")[1]
    measured = [cells(line) for line in results.split("### Stdio")[1].split("###")[0].splitlines() if line[:1] == "|"]
    columns = [measured[0].index(name) for name in ("trio-mcp", "mcp, asyncio", "fastmcp")]
    figures = {row[0]: [row[column] for column in columns] for row in measured[2:]}
    head, _, *rows = [cells(line) for line in README.splitlines() if line.startswith("|")]
    assert rows
    assert {row[0]: row[1:] for row in rows} == {row[0]: figures[row[0]] for row in rows}
    taken = re.search(r"Taken ([\d-]+)T", results)
    assert taken is not None
    assert head[0] == f"measured on {taken[1]}"
    assert all(name in results for name in head[1:])


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https:)([^)#]+)(?:#[^)]*)?\)", README))
def test_a_link_leads_to_a_file(link: str) -> None:
    assert (ROOT / link).is_file()
