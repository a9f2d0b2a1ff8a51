"""``trio-mcp read``: arguments, options and help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .errand_options import errand_options
from .shell_completion import TARGET, URI
from .target_options import TargetCommand

if TYPE_CHECKING:
    from ..errands.reading import Reading


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("uri", type=URI)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@errand_options
def read(uri: str, as_json: bool) -> Reading:
    """Read a resource of a server, to standard output.

    TARGET is as for `trio-mcp inspect`; the words of a command come last, after --.

    \b
        trio-mcp read server.py note://today
        trio-mcp read ws://127.0.0.1:8765/mcp file:///logo.png > logo.png
        trio-mcp read note://today -- python server.py

    A terminal shows text, and describes other contents. A file or another program gets the contents byte for byte, one
    part after another.

    Progress, log lines, questions, Ctrl-C and the exit status are those of `trio-mcp call`.
    """
    from ..errands.reading import Reading

    return Reading(uri=uri, as_json=as_json)
