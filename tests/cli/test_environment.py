"""The environment of servers that a command starts, and the help text about it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from trio_mcp import Command
from trio_mcp.cli.group import trio_mcp
from trio_mcp.cli.targets import target_typed

CONTEXT = click.Context(trio_mcp)
COMMANDS = {name: trio_mcp.get_command(CONTEXT, name) for name in trio_mcp.list_commands(CONTEXT)}


def is_starter(command: click.Command | None) -> bool:
    """Whether the command may start the server that is typed as its TARGET."""
    assert command is not None
    return command.name != "logout" and {"config", "target"} <= {parameter.name for parameter in command.params}


STARTERS = sorted(name for name, command in COMMANDS.items() if is_starter(command))


def test_only_a_server_command_typed_on_the_command_line_inherits_the_environment(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"one": {"command": "server", "env": {"KEY": "1"}}}}')
    for typed in (["server"], "sh -c true"):
        target = target_typed(typed)
        assert isinstance(target, Command)
        assert target.inherit_env
    configured = target_typed("one", file)
    assert isinstance(configured, Command)
    assert (configured.inherit_env, configured.env) == (False, {"KEY": "1"})


@pytest.mark.parametrize("name", STARTERS)
def test_help_of_config_option_describes_the_environment_of_started_servers(name: str) -> None:
    command = COMMANDS[name]
    assert command is not None
    (option,) = [each for each in command.params if each.name == "config"]
    assert isinstance(option, click.Option)
    assert "A command that you type as TARGET gets your whole environment" in (option.help or "")


def test_help_of_gateway_describes_the_environment_of_its_servers() -> None:
    command = COMMANDS["gateway"]
    assert command is not None
    (option,) = [each for each in command.params if each.name == "config"]
    assert isinstance(option, click.Option)
    assert "gets a few harmless environment variables (PATH, HOME, ...) and those of the entry" in (option.help or "")


def test_tests_of_help_on_environment_variables_cover_the_commands_that_start_servers() -> None:
    assert {"bridge", "call", "complete", "inspect", "prompt", "read"} <= set(STARTERS)
