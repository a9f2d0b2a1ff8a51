"""``trio-mcp read``, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .completing import TARGET, URI
from .target_options import TargetCommand, connection_options, connection_typed, log_level_option

__all__ = ["read"]


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("uri", type=URI)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@log_level_option
@connection_options
def read(
    target: str,
    uri: str,
    as_json: bool,
    log_level: str,
    config: Path | None,
    era: Any,
    timeout: float | None,
    stderr: bool,
) -> int:
    """Read a resource of a server, to standard output.

    TARGET is what `trio-mcp inspect` takes; as the words of a command after -- it comes last.

    \b
        trio-mcp read server.py note://today
        trio-mcp read ws://127.0.0.1:8765/mcp file:///logo.png > logo.png
        trio-mcp read note://today -- python server.py

    A terminal is shown text, and of all else what it is. A file or another program gets the contents byte for byte, one
    after another where there are several.

    Progress, log lines, questions, Ctrl-C and the exit status are those of `trio-mcp call`.
    """
    from ..errands import run_errand
    from ..reading import Reading
    from ..targets import NoTarget

    try:
        connection = connection_typed(target, config, era, timeout, log_level, stderr=stderr)
    except NoTarget as error:
        raise click.UsageError(str(error)) from None
    return run_errand(connection, Reading(uri=uri, as_json=as_json))
