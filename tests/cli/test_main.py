"""The command itself: help, versions, and what it does without its extra."""

import sys
from importlib.metadata import version

import pytest
from tests.cli.commands import TRIO_MCP, run


async def test_version_is_that_of_the_distribution():
    ended = await run([*TRIO_MCP, "--version"])
    assert (ended.status, ended.stdout) == (0, f"trio-mcp, version {version('trio-mcp')}\n")


async def test_package_runs_as_a_module_and_its_help_names_the_commands():
    ended = await run([sys.executable, "-m", "trio_mcp.cli", "--help"])
    assert ended.status == 0
    assert "trio-mcp demo" in ended.stdout
    assert "trio-mcp run server.py" in ended.stdout


async def test_unknown_command_is_a_usage_error():
    ended = await run([*TRIO_MCP, "serve"])
    assert ended.status == 2
    assert "No such command 'serve'" in ended.stderr


@pytest.mark.parametrize("missing", ["click", "rich"])
async def test_without_the_extra_it_says_what_to_install(missing: str):
    code = f"import sys; sys.modules[{missing!r}] = None; from trio_mcp.cli.main import main; main()"
    ended = await run([sys.executable, "-c", code])
    assert ended.status == 2
    assert ended.stderr == "trio-mcp: the command line is an extra; install 'trio-mcp[cli]'\n"


async def test_importing_the_package_imports_nothing_of_the_extra():
    ended = await run([sys.executable, "-c", "import sys, trio_mcp; print({'click', 'rich'} & set(sys.modules))"])
    assert ended.stdout == "set()\n"
