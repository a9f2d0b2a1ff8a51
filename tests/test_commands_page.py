"""The options and exit statuses on `docs/commands.md` are those of the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from tests.pages import Page

from trio_mcp import cli
from trio_mcp.cli.group import trio_mcp

PAGE = Page("commands.md").text


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            yield from options(subcommand, context)


def test_each_documented_option_of_a_trio_mcp_command_exists() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE))
    assert named - {"--help", *options(trio_mcp, click.Context(trio_mcp))} == set()


def test_each_documented_trio_mcp_command_exists() -> None:
    named = set(re.findall(r"\btrio-mcp ([a-z]+)\b", PAGE))
    assert named - set(trio_mcp.list_commands(click.Context(trio_mcp))) == set()


def test_documented_table_of_exit_statuses_is_complete() -> None:
    section = PAGE.split("\n## Exit statuses\n")[1].split("\n## ")[0]
    documented = {int(status) for status in re.findall(r"^\| (\d+) \|", section, flags=re.MULTILINE)}
    statuses = {value for name, value in vars(cli).items() if name.isupper() and isinstance(value, int)}
    assert documented == statuses - {cli.SIGNALLED}
