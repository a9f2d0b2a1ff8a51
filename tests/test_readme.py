"""The README's examples and tables hold."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.patience import PATIENCE
from tests.ports import free_port

import trio_mcp
from trio_mcp import REVISIONS, Limits, open_stdio

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", README, flags=re.DOTALL)


def rows_of(heading: str) -> list[list[str]]:
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def wait_for_listener(port: int) -> None:
    """Return when somebody listens on ``port``: another process, of whose start no event tells."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < end, "nobody listens"
            time.sleep(0.05)
        else:
            return


def test_the_two_examples_run_together_as_they_stand(tmp_path: Path) -> None:
    for name, code in BLOCKS:
        (tmp_path / name).write_text(code)
    ran = subprocess.run(
        [sys.executable, "host.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "processed 2 items" in ran.stdout
    assert "Progress(progress=" in ran.stdout


@pytest.mark.parametrize("example", ["remote.py", "web.py"])
def test_the_example_of_a_transport_runs_as_it_stands(tmp_path: Path, example: str) -> None:
    for name, code in BLOCKS:
        (tmp_path / name).write_text(code)
    ran = subprocess.run(
        [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "processed 2 items\n"), ran.stderr


def test_the_examples_of_a_protected_server_and_its_client_run_as_they_stand(tmp_path: Path) -> None:
    port = free_port()
    for name, code in BLOCKS:
        (tmp_path / name).write_text(code.replace("8791", str(port)))
    with subprocess.Popen([sys.executable, "guarded.py"], cwd=tmp_path) as server:
        try:
            wait_for_listener(port)
            ran = subprocess.run(
                [sys.executable, "ann.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        finally:
            server.terminate()
            status = server.wait(PATIENCE)
    assert (ran.returncode, ran.stdout, status) == (0, "ann noted: buy milk\n", 0), ran.stderr


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
    assert (ran.returncode, ran.stdout) == (0, "resource note://a\n"), ran.stderr


@pytest.mark.parametrize(
    ("name", "printed"),
    [("shared.py", "['config://limits']\n" * 2), ("traced.py", "processed 1 items\n")],
)
def test_the_examples_of_caches_and_traces_run_as_they_stand(tmp_path: Path, name: str, printed: str) -> None:
    for other, code in BLOCKS:
        (tmp_path / other).write_text(code)
    ran = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, printed), ran.stderr


def test_each_example_is_a_whole_file_with_a_name_of_its_own() -> None:
    assert README.count("```python") == len(BLOCKS) == len(dict(BLOCKS))


# The commands, as they are printed

SET_UP = ("python3 -m venv ", "pip install ", "pytest -n ")
"""Lines that make the environment in which this runs."""


def lines_of(section: str) -> list[str]:
    text = README.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)).splitlines()
    return [line for line in lines if line and not line.startswith(SET_UP)]


class Shell:
    """One shell after another, in a directory with all examples, for a user who has nothing else."""

    def __init__(self, path: Path) -> None:
        self._home, self._path = path / "home", path / "examples"
        for name, code in BLOCKS:
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


def test_the_command_line_does_as_printed_and_in_this_order(shell: Shell) -> None:
    lines = [line.split("  #")[0].strip() for line in lines_of("Command line")]
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


def test_the_example_of_a_test_and_the_type_checker_do_as_printed(shell: Shell) -> None:
    pytest.importorskip("pyright", reason="needs the type checker: pip install -e '.[dev]'")
    test, check = lines_of("Testing")
    assert "1 passed" in shell.run(test)
    assert "0 errors" in shell.run(check)


def test_what_is_printed_to_try_it_begins_with_a_clone_and_ends_with_the_demo() -> None:
    assert [line.split()[0] for line in lines_of("Try it")] == ["trio-mcp"]
    assert README.index("`git clone`") < README.index("```sh")


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
