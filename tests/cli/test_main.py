"""The command itself: help, version, and a missing extra."""

import shlex
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from tests.cli.commands import TRIO_MCP, run
from tests.cli.terminals import in_terminal

import trio_mcp.cli
from trio_mcp.cli.group import SUMMARIES
from trio_mcp.cli.group import trio_mcp as commands

DEMO_SERVER = Path(trio_mcp.cli.__file__).with_name("demo_server.py")


async def test_version_option_prints_the_version_of_the_distribution():
    ended = await run([*TRIO_MCP, "--version"])
    assert (ended.status, ended.stdout) == (0, f"trio-mcp, version {version('trio-mcp')}\n")


async def test_python_dash_m_trio_mcp_runs_and_its_help_lists_the_commands():
    ended = await run([sys.executable, "-m", "trio_mcp.cli", "--help"])
    assert ended.status == 0
    assert "trio-mcp demo" in ended.stdout
    assert "trio-mcp run server.py" in ended.stdout


async def test_unknown_command_is_a_usage_error():
    ended = await run([*TRIO_MCP, "serve"])
    assert ended.status == 2
    assert "No such command 'serve'" in ended.stderr


@pytest.mark.parametrize("missing", ["click", "rich"])
async def test_command_reports_the_extra_to_install_if_the_cli_extra_is_missing(missing: str):
    code = f"import sys; sys.modules[{missing!r}] = None; from trio_mcp.cli.main import main; main()"
    ended = await run([sys.executable, "-c", code])
    assert ended.status == 2
    assert ended.stderr == "trio-mcp: the command line needs an extra: pip install 'trio-mcp[cli]'\n"


async def test_importing_trio_mcp_does_not_import_click_or_rich():
    ended = await run([sys.executable, "-c", "import sys, trio_mcp; print({'click', 'rich'} & set(sys.modules))"])
    assert ended.stdout == "set()\n"


async def test_list_of_commands_is_available_without_importing_large_modules():
    heavy = {"rich", "jsonschema_rs", "trio_mcp.client.client", "trio_mcp.connecting.targets", "trio_mcp.hosting.group"}
    code = f"import sys, trio_mcp.cli.group; print({heavy} & set(sys.modules))"
    assert (await run([sys.executable, "-c", code])).stdout == "set()\n"


async def test_each_command_is_imported_without_the_other_commands():
    code = (
        "import sys; from trio_mcp.cli.group import trio_mcp; trio_mcp.get_command(None, 'run'); "
        "print(*[name for name in sys.modules if name.startswith('trio_mcp.cli.commands.')])"
    )
    assert (await run([sys.executable, "-c", code])).stdout == "trio_mcp.cli.commands.run\n"


@pytest.mark.parametrize("name", SUMMARIES)
def test_command_list_shows_the_summary_of_each_command(name: str):
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    assert command.name == name
    assert " ".join((command.help or "").partition("\n\n")[0].split()) == SUMMARIES[name]


async def test_command_prints_no_traceback_if_its_stdout_pipe_is_closed():
    command = f"{shlex.join(TRIO_MCP)} inspect {DEMO_SERVER} --json | head -n 1"
    ended = await run(["bash", "-c", command])
    assert (ended.stdout, ended.stderr) == ("{\n", "")


async def test_command_prints_no_traceback_after_ctrl_c():
    silent = "import sys; print('here', file=sys.stderr, flush=True); sys.stdin.read()"
    async with in_terminal([*TRIO_MCP, "inspect", "--stderr", "--", sys.executable, "-c", silent]) as terminal:
        await terminal.read_until("here")
        terminal.type("\x03")
        assert await terminal.read_to_end() == 130
    assert "Traceback" not in terminal.shown


def test_each_command_summary_fits_a_line_of_eighty_characters() -> None:
    longest = max(map(len, SUMMARIES))
    assert [text for text in SUMMARIES.values() if 2 + longest + 2 + len(text) > 78] == []
