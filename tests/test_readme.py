"""The README's examples, commands and tables, and those of the site's home page."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.pages import ROOT, Page
from tests.patience import PATIENCE

README = (ROOT / "README.md").read_text()
HOME = Page("index.md")
BLOCKS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", README, flags=re.DOTALL)


def test_readme_has_fewer_than_200_lines() -> None:
    assert len(README.splitlines()) < 200


def test_readme_client_example_calls_its_server(tmp_path: Path) -> None:
    for name, code in BLOCKS:
        (tmp_path / name).write_text(code)
    ran = subprocess.run(
        [sys.executable, "hello_client.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "Hello, Ann!\n"), ran.stderr


def test_each_readme_example_has_a_different_file_name() -> None:
    assert README.count("```python") == len(BLOCKS) == len(dict(BLOCKS))


@pytest.mark.parametrize(("name", "code"), BLOCKS)
def test_readme_example_has_at_most_thirteen_lines(name: str, code: str) -> None:
    statements = [line for line in code.splitlines() if line.strip()]
    assert len(statements) <= 13, name


def test_readme_has_one_command_for_the_demo_and_one_for_the_tests() -> None:
    demo, tests = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    assert demo == "python3 -m venv .venv && .venv/bin/pip install '.[cli]' && .venv/bin/trio-mcp demo\n"
    assert tests == "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && .venv/bin/pytest -n 3\n"


def test_demo_command_ends_with_the_lines_shown_in_the_readme() -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", README, flags=re.DOTALL)
    demo = [sys.executable, "-m", "trio_mcp.cli", "demo"]
    ran = subprocess.run(demo, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr
    assert without_numbers(ran.stdout).endswith(without_numbers(shown))


def without_numbers(text: str) -> str:
    """The words of ``text``, on one line, with each number replaced by 0."""
    return re.sub(r"\d+(\.\d+)?", "0", " ".join(text.split()))


def test_home_page_client_example_times_out_and_exits(tmp_path: Path) -> None:
    for name, code in HOME.blocks.items():
        (tmp_path / f"{name}.py").write_text(code)
    ran = subprocess.run(
        [sys.executable, "timer_client.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "two seconds later, both processes are free\n"), ran.stderr


def table_below(heading: str, text: str) -> list[list[str]]:
    """The cells of the first table below ``heading``."""
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [cells(line) for line in section.splitlines() if line.startswith("|")]


def test_readme_and_home_page_compare_the_same_features() -> None:
    link = re.compile(r"\[([^]]*)\]\((?:docs/)?([^)]*)\)")
    assert table_below("Features", link.sub(r"\1 \2", README)) == table_below("Features", link.sub(r"\1 \2", HOME.text))


def test_feature_comparison_names_the_installed_sdk_versions() -> None:
    head = table_below("Features", README)[0]
    for name in ("trio-mcp", "mcp", "fastmcp"):
        (compared,) = (column.split()[1] for column in head if column.split()[0] == name)
        assert version(name).startswith(f"{compared}."), name


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_readme_speed_table_quotes_the_benchmark_figures() -> None:
    results = (ROOT / "benchmarks" / "README.md").read_text().split("<!-- results -->")[1]
    measured = [cells(line) for line in results.split("### Stdio")[1].split("###")[0].splitlines() if line[:1] == "|"]
    columns = [measured[0].index(name) for name in ("trio-mcp", "mcp, asyncio", "fastmcp")]
    figures = {row[0]: [row[column] for column in columns] for row in measured[2:]}
    head, _, *rows = table_below("Speed", README)
    assert rows
    assert {row[0]: row[1:] for row in rows} == {row[0]: figures[row[0]] for row in rows}
    taken = re.search(r"Taken ([\d-]+)T", results)
    assert taken is not None
    assert head[0] == f"measured on {taken[1]}"
    assert all(name in results for name in head[1:])
    assert head[1] == f"trio-mcp {version('trio-mcp')}", "the figures are those of the present version"


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https:)([^)#]+)(?:#[^)]*)?\)", README))
def test_readme_link_leads_to_an_existing_file(link: str) -> None:
    assert (ROOT / link).is_file()
