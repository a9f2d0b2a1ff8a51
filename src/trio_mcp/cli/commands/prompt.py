"""``trio-mcp prompt``: arguments, options and help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .errand_options import errand_options
from .shell_completion import PROMPT, TARGET
from .target_options import TargetCommand

if TYPE_CHECKING:
    from ..errands.prompting import Prompting


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("name", metavar="PROMPT", type=PROMPT)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@errand_options
def prompt(name: str, arguments: tuple[str, ...], as_json: bool) -> Prompting:
    """Fill in a prompt of a server and print its messages.

    TARGET is as for `trio-mcp inspect`; the words of a command come last, after --.

    \b
        trio-mcp prompt server.py praise dish=soup
        trio-mcp prompt praise dish=soup --json -- python server.py

    Values are strings, taken literally.

    Progress, log lines, questions, Ctrl-C and the exit status are those of `trio-mcp call`.
    """
    from ..errands.prompting import Prompting

    return Prompting(prompt=name, pairs=arguments, as_json=as_json)
