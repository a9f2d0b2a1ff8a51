"""``trio-mcp call``, as it is typed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .completing import TARGET, TOOL
from .target_options import TargetCommand, connection_options, words_after_dashes

__all__ = ["call"]

_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "off")


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("tool", type=TOOL)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "given", metavar="ARGS", help="The arguments as one JSON object; KEY=VALUE goes on top of it.")
@click.option("--raw", is_flag=True, help="Print the whole result as JSON.")
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Least severe log message of the server to show.",
)
@connection_options
def call(
    target: str,
    tool: str,
    arguments: tuple[str, ...],
    given: str | None,
    raw: bool,
    log_level: str,
    config: Path | None,
    era: Any,
    timeout: float | None,
    stderr: bool,
) -> int:
    """Call a tool of a server and print its result.

    TARGET is what `trio-mcp inspect` takes; as the words of a command after -- it comes last.

    \b
        trio-mcp call server.py pack files=30
        trio-mcp call ws://127.0.0.1:8765/mcp search --json '{"words": ["a", "b"]}'
        trio-mcp call add a=1 b=2 -- python server.py

    Values are converted as the tool's schema says: strings as they are, all else as JSON. Progress, log lines and
    questions go to standard error, the result to standard output. In a terminal you are asked what the server asks;
    elsewhere the server is told beforehand that nobody can be asked. Ctrl-C cancels the call, and says whether the
    server knows; a second one leaves at once.

    Exit status: 0; 1 when the tool failed; 2 when TARGET, TOOL or an argument cannot be meant; 3 when there is no
    connection, or no more; 4 when the server answers with an error; 5 when the time is over; 130 after Ctrl-C, 128 and
    its number after another signal.
    """
    from ..arguments import BadArgument, object_typed
    from ..calling import Call, NoSuchTool, call_tool
    from ..targets import NoTarget, target_typed

    try:
        return call_tool(
            Call(
                target=target_typed(words_after_dashes(target), config, sys.stderr if stderr else None),
                tool=tool,
                pairs=arguments,
                given=None if given is None else object_typed(given),
                log_level=None if log_level.lower() == "off" else log_level.lower(),
                era=era,
                timeout=timeout,
                raw=raw,
            )
        )
    except (NoTarget, NoSuchTool, BadArgument) as error:
        raise click.UsageError(str(error)) from None
