"""The programs and tables of the pages `docs/get-started` hold. Each program runs in its own process."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import trio
from tests.pages import ROOT, Page
from tests.patience import PATIENCE
from tests.ports import free_port

from trio_mcp.cli.targets import HOSTS, command_of_file

INSTALLATION, QUICKSTART, HOSTS_PAGE, TUTORIAL = (
    Page(f"get-started/{name}.md") for name in ("installation", "quickstart", "hosts", "tutorial")
)
EXAMPLE, TEXT = r"```python\n# (\w+)\.py\n(?:(?!```).*\n)*```\n", r"```text\n((?:(?!```).*\n)*)"
PRINTED = {**dict(re.findall(rf"{EXAMPLE}\nIt prints:\n\n{TEXT}", TUTORIAL.text)), "patron": "copied 3 pages\n"}
SERVERS = {"copyist", "word_counter", "batch", "counter_over_http"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the programs of the pages."""
    for page in (QUICKSTART, TUTORIAL):
        for name, code in page.blocks.items():
            (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


def run(folder: Path, *words: str) -> str:
    """Run a Python program, and return its standard output."""
    ran = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def commands(text: str) -> list[str]:
    """The arguments of each `trio-mcp` command in the shell blocks of a page."""
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [line.removeprefix("trio-mcp ") for line in "".join(blocks).splitlines() if line.startswith("trio-mcp ")]


@pytest.mark.parametrize("name", PRINTED)
def test_tutorial_program_prints_the_documented_output(folder: Path, name: str) -> None:
    assert run(folder, f"{name}.py") == PRINTED[name]


def test_every_client_program_of_the_tutorial_is_tested() -> None:
    assert PRINTED.keys() == TUTORIAL.blocks.keys() - SERVERS


def test_tutorial_commands_list_and_call_the_tool(folder: Path) -> None:
    inspect, call = commands(TUTORIAL.text)
    assert "copy_book" in run(folder, "-m", "trio_mcp.cli", *shlex.split(inspect))
    assert "copied 3 pages" in run(folder, "-m", "trio_mcp.cli", *shlex.split(call))


def test_quickstart_commands_list_and_call_the_tool(folder: Path) -> None:
    inspect, call, _ = commands(QUICKSTART.text)
    assert "count_words" in run(folder, "-m", "trio_mcp.cli", *shlex.split(inspect))
    assert run(folder, "-m", "trio_mcp.cli", *shlex.split(call)) == "3\n"


def test_quickstart_client_prints_the_number_of_words(folder: Path) -> None:
    assert run(folder, "count_client.py") == "2\n"


def test_quickstart_host_program_shows_progress_until_the_call_times_out(folder: Path) -> None:
    printed = run(folder, "host.py")
    assert "Progress(progress=" in printed
    assert printed.endswith("processed 2 items\n")


async def test_quickstart_http_server_answers_the_documented_command(folder: Path) -> None:
    port = str(free_port())
    program = folder / "counter_over_http.py"
    program.write_text(program.read_text().replace("8000", port))
    *_, call = commands(QUICKSTART.text)
    server = await trio.lowlevel.open_process([sys.executable, program.name], cwd=folder)
    try:
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", int(port))).aclose()
                    break
                except OSError:
                    assert server.poll() is None
                    await trio.sleep(0.05)
        words = shlex.split(call.replace("8000", port))
        assert await trio.to_thread.run_sync(run, folder, "-m", "trio_mcp.cli", *words) == "2\n"
    finally:
        server.terminate()
        await server.wait()


def test_every_quickstart_program_is_tested() -> None:
    assert QUICKSTART.blocks.keys() == {"count_client", "host", *SERVERS - {"copyist"}}


def test_documented_table_of_mcp_hosts_lists_the_config_file_of_each_host() -> None:
    rows = re.findall(r"^\| (.*?) \| `--client (\S+)` \| `(\S+(?: \S+)*?)`(.*?) \|$", HOSTS_PAGE.text, flags=re.M)
    on_macos = [row for row in rows if row[0].endswith("on macOS")]
    assert [row[1] for row in on_macos] == ["claude-desktop"]
    assert {client for _, client, _, _ in rows} == HOSTS.keys()
    for name, client, file, where in rows:
        host = HOSTS[client]
        if client != "claude-desktop":
            assert (file, name) == (host.path, host.title.removesuffix(", in this project"))
            assert (where == " in the current directory") == host.title.endswith(", in this project")


def test_documented_config_entries_equal_the_entries_that_the_install_command_writes() -> None:
    entries = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", HOSTS_PAGE.text, flags=re.DOTALL)]
    command = [word.replace(sys.executable, "/home/ann/.venv/bin/python") for word in command_of_file(__file__)]
    command[-1] = "/home/ann/word_counter.py"
    for shown, client in zip(entries[:2], ("cursor", "vscode"), strict=True):
        host = HOSTS[client]
        assert shown == {host.section: {"word counter": host.entry(command, {})}}


def test_documented_options_of_the_install_command_are_complete() -> None:
    section = HOSTS_PAGE.text.split("## Options\n")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `(--[a-z-]+)", section, flags=re.MULTILINE))
    help_text = run(ROOT, "-m", "trio_mcp.cli", "install", "--help")
    assert named == set(re.findall(r"^ +(--[a-z-]+)", help_text, flags=re.MULTILINE)) - {"--client", "--help"}


def test_installed_server_can_be_called_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    desktop, vscode, call, _ = commands(HOSTS_PAGE.text)
    for line in (desktop, vscode):
        run(folder, "-m", "trio_mcp.cli", *shlex.split(line))
    assert run(folder, "-m", "trio_mcp.cli", *shlex.split(call)) == "2\n"


def test_documented_table_of_extras_is_complete() -> None:
    section = INSTALLATION.text.split("## Optional extras\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[a-z`, ]+) \|", section, flags=re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(extras)
