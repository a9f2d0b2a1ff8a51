"""The examples of `docs/tutorial.md` run as they stand, each in a process of its own, and print what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pages import Page
from tests.patience import PATIENCE

PAGE = Page("tutorial.md")
EXAMPLE, TEXT = r"```python\n# (\w+)\.py\n(?:(?!```).*\n)*```\n", r"```text\n((?:(?!```).*\n)*)"
PRINTED = {**dict(re.findall(rf"{EXAMPLE}\nIt prints:\n\n{TEXT}", PAGE.text)), "patron": "copied 3 pages\n"}


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_prints_what_the_page_says(tmp_path: Path, name: str) -> None:
    for example, code in PAGE.blocks.items():
        (tmp_path / f"{example}.py").write_text(code)
    ran = subprocess.run(
        [sys.executable, f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, PRINTED[name]), ran.stderr


def test_each_program_but_the_server_is_run_here() -> None:
    assert PRINTED.keys() == PAGE.blocks.keys() - {"copyist"}


def test_the_commands_do_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "copyist.py").write_text(PAGE.blocks["copyist"])
    inspect, call = re.findall(r"^trio-mcp (.*)$", PAGE.text, flags=re.MULTILINE)
    for line, words in ((inspect, "copy_book"), (call, "copied 3 pages")):
        ran = subprocess.run(
            [sys.executable, "-m", "trio_mcp.cli", *line.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert words in ran.stdout
