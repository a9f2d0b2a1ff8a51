"""TargetCommand and connection_options: the parts of the command line shared by commands that use a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from .sign_in_options import sign_in_options

F = TypeVar("F", bound=Callable[..., Any])

PLACEHOLDER: Final = "-"
_LOOKED_UP: Final = "Look up TARGET as a name in this file's mcpServers."
_ENVIRONMENT: Final = (
    "The command of such an entry gets a few harmless variables (PATH, HOME, ...) and those of the entry; a command "
    "that you type as TARGET gets your whole environment, secrets included."
)
_WORDS: Final = "trio_mcp.command"


class TargetCommand(click.Command):
    """A command whose first argument, TARGET, can be given as the words of a command after ``--`` instead."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the words after ``--`` for TARGET: see `click.Command.parse_args`."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[_WORDS] = tuple(args[at + 1 :])
            if not ctx.meta[_WORDS] and not ctx.resilient_parsing:
                ctx.fail("a command is missing after --")
            args = [PLACEHOLDER, *args[:at]]
        return super().parse_args(ctx, args)


def words_after_dashes(target: str) -> str | tuple[str, ...]:
    """Return TARGET, or the words typed after ``--`` instead."""
    context = click.get_current_context()
    if _WORDS in context.meta:
        return context.meta[_WORDS]
    return target


def config_option(command: F) -> F:
    """Add the option for the file in which names are looked up: --config."""
    return _config_option(_LOOKED_UP)(command)


def config_option_of_starters(command: F) -> F:
    """Add --config to a command that may start a server, and say what a server gets of the environment."""
    return _config_option(f"{_LOOKED_UP} {_ENVIRONMENT}")(command)


def _config_option(words: str) -> Callable[[F], F]:
    return click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help=words)


def connection_options(command: F) -> F:
    """Add the options about the server and the connection to it: --config, --era, --timeout, --stderr, and those of
    `sign_in_options`."""
    command = cast("F", sign_in_options(command))
    for option in (
        click.option("--stderr", is_flag=True, help="Show what the server writes to standard error."),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="Time limit for the server.",
        ),
        click.option(
            "--era",
            type=click.Choice(["auto", "modern", "legacy"]),
            default="auto",
            show_default=True,
            help="Which era of the protocol to speak; auto asks the server.",
        ),
        config_option_of_starters,
    ):
        command = option(command)
    return command
