"""The examples of the pages for users run as they stand, and their tables hold: those pages whose examples go together
with those of the README, in one folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.forked import forked_command
from tests.pages import ROOT, USER_PAGES, Page, examples_in
from tests.patience import PATIENCE

from trio_mcp import Limits, open_stdio

PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in USER_PAGES}
BLOCKS = {name: code for page in reversed(PAGES.values()) for name, code in examples_in(page).items()}
"""The examples of all pages, by the names of their files."""


def run_example(folder: Path, name: str) -> tuple[int, str, str]:
    """Run an example among all others, in a Python that has imported trio-mcp. Return its exit status and what it has
    printed, on both streams."""
    for other, code in BLOCKS.items():
        (folder / other).write_text(code)
    command = forked_command([name])
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("over_channels.py", "processed 1 items\n"),
        ("note_changes.py", "resource note://a\n"),
        ("shared_cache.py", "['config://limits']\n" * 2),
        (
            "pinned.py",
            "'batch__process_batch' is held back: it hasn't been approved. `trio-mcp pins approve` approves tools "
            "Process the items one by one.\n['batch__process_batch']\n",
        ),
    ],
)
def test_documented_example_prints_the_documented_output(tmp_path: Path, name: str, printed: str) -> None:
    status, output, errors = run_example(tmp_path, name)
    assert (status, output) == (0, printed), errors


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_elicitation_example_serves_legacy_and_modern_clients(tmp_path: Path, era: Any) -> None:
    (tmp_path / "shop.py").write_text(BLOCKS["shop.py"])
    command = forked_command(["-m", "trio_mcp.cli", "run", str(tmp_path / "shop.py")])
    async with open_stdio(command, era=era, elicitation=lambda _: {"street": "Elm"}) as client:
        assert (await client.call_tool("order", {"item": "tea"})).text == "tea to Elm 1"


def test_example_file_name_refers_to_the_same_program_on_all_pages() -> None:
    places = [(name, page) for page, text in PAGES.items() for name in examples_in(text)]
    names = [name for name, _ in places]
    assert [place for place in places if names.count(place[0]) > 1] == []


@pytest.mark.parametrize("page", PAGES)
def test_documented_code_is_at_most_76_columns_wide(page: str) -> None:
    blocks = re.findall(r"^( *)```(\w+)\n(.*?)```", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    blocks = [block for block in blocks if (page, block[1]) != ("README.md", "sh")]  # commands of one line, to copy
    lines = [line.removeprefix(indent) for indent, _, block in blocks for line in block.splitlines()]
    assert [line for line in lines if len(line) > 76] == []


# The commands, as they are printed


class Shell:
    """One shell after another, in a directory with all examples, for a user who has nothing else."""

    def __init__(self, path: Path) -> None:
        self._home, self._path = path / "home", path / "examples"
        for name, code in BLOCKS.items():
            self._path.mkdir(exist_ok=True)
            (self._path / name).write_text(f"# {name}\n{code}")
        self._home.mkdir()
        found = {"HOME": str(self._home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        unwanted = ("XDG_CONFIG_HOME", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "FORCE_COLOR")
        self._env = {key: value for key, value in os.environ.items() if key not in unwanted} | found

    def run(self, line: str) -> str:
        """What it prints."""
        ran = subprocess.run(
            ["bash", "-c", line],
            cwd=self._path,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    @contextmanager
    def background(self, line: str) -> Iterator[str]:
        """The first line on standard error of a command that ends with ``&``."""
        words = shlex.split(line.removesuffix("&"))
        with subprocess.Popen(words, cwd=self._path, env=self._env, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                yield process.stderr.readline()
            finally:
                process.terminate()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_documented_shell_commands_print_the_documented_output_in_order(shell: Shell) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", Page("commands.md").text, flags=re.DOTALL)
    lines = [line.split("  #")[0].strip() for line in block.splitlines()]
    at = lines.index("trio-mcp run batch.py --websocket 8765 &")
    shown = [shell.run(line) for line in lines[:at]]
    with shell.background(lines[at].replace("8765", "0")) as announced:
        port = announced.split("127.0.0.1:")[1].split("/")[0]
        shown += [shell.run(line.replace("8765", port)) for line in lines[at + 1 :]]
    for words, output in zip(
        (
            "process_batch",
            "processed 2 items",
            "processed 1 items",
            "soup on monday",
            "user: Praise the soup.",
            "soup\nstew\n",
            "",
            "processed 1 items",
            "process_batch",
        ),
        shown,
        strict=True,
    ):
        assert words in output


def test_documented_table_of_limits_lists_the_defaults_in_the_code() -> None:
    defaults = {field.name: field.default for field in attrs.fields(Limits)}
    lines = Page("guarantees/limits.md").text.splitlines()
    table = [line.strip("|").split("|") for line in lines if line.startswith("| `")]
    told = {re.match(r" `(\w+)`", row[0])[1]: float(row[1]) for row in table}  # type: ignore[index]
    assert told == defaults
