"""Options that the commands call, read, prompt and complete share."""

from __future__ import annotations

import inspect

import click
import pytest

from trio_mcp.cli.commands.inspect import inspect as inspect_command
from trio_mcp.cli.commands.proxies import bridge, gateway
from trio_mcp.cli.commands.requests import call, complete, prompt, read, tasks
from trio_mcp.cli.commands.run import run
from trio_mcp.cli.group import SUMMARIES, trio_mcp

SHARED = [
    "server_log_level",
    "config",
    "era",
    "timeout",
    "stderr",
    "headers",
    "env",
    "trust_http",
    "revision",
    "asks",
    "bearer_env",
    "tokens",
]

each = pytest.mark.parametrize("command", [call, read, prompt, complete], ids=lambda command: command.name)


@each
def test_options_shared_by_all_commands_are_not_parameters_of_the_command_functions(command: click.Command) -> None:
    assert command.callback is not None
    own = inspect.signature(command.callback).parameters  # of what is wrapped
    assert not own.keys() & {"target", *SHARED}
    assert own.keys() == {parameter.name for parameter in command.params} - {"target", *SHARED}


@each
def test_options_shared_by_all_commands_are_identical_and_listed_last_in_each_command(command: click.Command) -> None:
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert [option.name for option in options[-len(SHARED) :]] == SHARED
    expected = [parameter.to_info_dict() for parameter in call.params[-len(SHARED) :]]
    assert [option.to_info_dict() for option in options[-len(SHARED) :]] == expected


COMMANDS = [
    *(trio_mcp.get_command(click.Context(trio_mcp), name) for name in SUMMARIES),
    *(tasks.get_command(click.Context(tasks), name) for name in ("get", "result", "cancel", "list")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_json_as_a_flag_and_accepts_python_log_levels(command: click.Command) -> None:
    options = {name: option for option in command.params for name in option.opts}
    assert "--json" not in options or options["--json"].to_info_dict()["is_flag"]
    assert "--log-level" not in options or "critical" in options["--log-level"].to_info_dict()["type"]["choices"]
    assert "--log-level" not in options or "alert" not in options["--log-level"].to_info_dict()["type"]["choices"]


def sections(command: click.Command) -> dict[str, set[str]]:
    """The options in each section of a command's help."""
    found: dict[str, set[str]] = {}
    title = ""
    for line in command.get_help(click.Context(command, info_name="x")).splitlines():
        if line.endswith(":") and not line.startswith(" "):
            title = line.removesuffix(":")
        elif title and line.startswith("  -"):
            found.setdefault(title, set()).update(word.strip(",") for word in line.split() if word.startswith("--"))
    return found


CONNECTION = {
    *("--config", "--era", "--timeout", "--stderr", "--header", "--env", "--trust-http", "--revision"),
    *("--sign-in", "--bearer-env", "--tokens"),
}


@pytest.mark.parametrize("command", [call, read, prompt, complete, inspect_command], ids=lambda command: command.name)
def test_help_lists_connection_options_in_a_separate_last_section(command: click.Command) -> None:
    found = {title: {name.partition("/")[0] for name in names} for title, names in sections(command).items()}
    assert list(found) == ["Options", "Connection options"]
    assert found["Connection options"] >= CONNECTION
    assert {"--json", "--help"} <= found["Options"]


def test_help_of_run_gateway_and_bridge_commands_shows_options_in_separate_sections() -> None:
    ours = {"Options", "Address options", "Token options", "Deployment options"}
    assert sections(run).keys() == ours
    assert sections(gateway).keys() == {*ours, "Connection options"}
    assert sections(bridge).keys() == {"Options", "Connection options", "Address options"}
    assert {"--http", "--path"} <= sections(run)["Address options"]
    assert {"--issuer", "--trust-http"} <= sections(run)["Token options"]
    assert {"--workers", "--metrics", "--health"} <= sections(run)["Deployment options"]
    assert {"--log-level", "--reload"} <= sections(run)["Options"]
