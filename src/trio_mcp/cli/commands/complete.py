"""``trio-mcp complete``: arguments, options and help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .errand_options import errand_options
from .shell_completion import REFERENCE, TARGET
from .target_options import TargetCommand

if TYPE_CHECKING:
    from ..errands.suggesting import Suggesting


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("name", metavar="NAME", type=REFERENCE)
@click.argument("arguments", nargs=-1, metavar="ARGUMENT=BEGINNING [KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print the suggestions and their total as JSON.")
@errand_options
def complete(name: str, arguments: tuple[str, ...], as_json: bool) -> Suggesting:
    """Ask a server for the values of an argument, and print its suggestions, one a line.

    TARGET is as for `trio-mcp inspect`; the words of a command come last, after --. NAME is a prompt, or a resource
    template as shown by `trio-mcp inspect`. The first argument is the one to complete: BEGINNING is typed already, and
    may be empty. The other arguments are settled.

    \b
        trio-mcp complete server.py praise dish=so
        trio-mcp complete server.py 'menu://{day}/{dish}' dish= day=monday

    Log lines, Ctrl-C and the exit status are those of `trio-mcp call`.
    """
    from ..errands.suggesting import Suggesting

    return Suggesting(name=name, pairs=arguments, as_json=as_json)
