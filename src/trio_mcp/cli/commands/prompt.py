"""``trio-mcp prompt``, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .completing import PROMPT, TARGET
from .target_options import TargetCommand, connection_options, connection_typed, log_level_option

__all__ = ["prompt"]


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("name", metavar="PROMPT", type=PROMPT)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@log_level_option
@connection_options
def prompt(
    target: str,
    name: str,
    arguments: tuple[str, ...],
    as_json: bool,
    log_level: str,
    config: Path | None,
    era: Any,
    timeout: float | None,
    stderr: bool,
) -> int:
    """Fill in a prompt of a server and print its messages.

    TARGET is what `trio-mcp inspect` takes; as the words of a command after -- it comes last.

    \b
        trio-mcp prompt server.py praise dish=soup
        trio-mcp prompt praise dish=soup --json -- python server.py

    Values are texts, as they are typed.

    Progress, log lines, questions, Ctrl-C and the exit status are those of `trio-mcp call`.
    """
    from ..arguments import BadArgument
    from ..errands import NotOffered, run_errand
    from ..prompting import Prompting
    from ..targets import NoTarget

    try:
        connection = connection_typed(target, config, era, timeout, log_level, stderr=stderr)
        return run_errand(connection, Prompting(prompt=name, pairs=arguments, as_json=as_json))
    except (NoTarget, NotOffered, BadArgument) as error:
        raise click.UsageError(str(error)) from None
