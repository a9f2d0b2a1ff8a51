"""What the commands that want one thing of a server share on the command line."""

from __future__ import annotations

import inspect

import click
import pytest

from trio_mcp.cli.commands.requests import call, complete, prompt, read

SHARED = [
    "log_level",
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
def test_the_shared_options_are_declared_in_one_place(command: click.Command) -> None:
    assert command.callback is not None
    own = inspect.signature(command.callback).parameters  # of what is wrapped
    assert not own.keys() & {"target", *SHARED}
    assert own.keys() == {parameter.name for parameter in command.params} - {"target", *SHARED}


@each
def test_the_shared_options_are_the_same_and_stand_behind_those_of_the_command(command: click.Command) -> None:
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert [option.name for option in options[-len(SHARED) :]] == SHARED
    expected = [parameter.to_info_dict() for parameter in call.params[-len(SHARED) :]]
    assert [option.to_info_dict() for option in options[-len(SHARED) :]] == expected
