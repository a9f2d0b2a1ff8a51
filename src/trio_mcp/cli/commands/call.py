"""``trio-mcp call``: arguments, options and help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .errand_options import errand_options
from .shell_completion import TARGET, TOOL
from .target_options import TargetCommand

if TYPE_CHECKING:
    from ..errands.calling import Calling, StartingTask


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("tool", type=TOOL)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "given", metavar="ARGS", help="The arguments as one JSON object; KEY=VALUE overrides a member.")
@click.option("--raw", is_flag=True, help="Print the whole result as JSON.")
@click.option("--task", "as_task", is_flag=True, help="Start a task, print its id, and do not wait for its end.")
@errand_options
def call(tool: str, arguments: tuple[str, ...], given: str | None, raw: bool, as_task: bool) -> Calling | StartingTask:
    """Call a tool of a server and print its result.

    TARGET is as for `trio-mcp inspect`; the words of a command come last, after --.

    \b
        trio-mcp call server.py pack files=30
        trio-mcp call ws://127.0.0.1:8765/mcp search --json '{"words": ["a", "b"]}'
        trio-mcp call add a=1 b=2 -- python server.py

    Values are converted by the tool's schema: strings are taken literally, other values are JSON. Progress, log lines
    and questions go to standard error, the result to standard output. In a terminal, you answer the server's questions;
    otherwise the server is told beforehand that nobody can be asked. Ctrl-C cancels the call, and reports whether the
    server knows; a second Ctrl-C leaves at once. When the tool crashes in a server that was started for the call, the
    server's traceback is shown.

    A tool that is run as a task is waited for, and the messages of the task are shown as progress; Ctrl-C cancels the
    task. With --task the command ends as soon as the task has begun, and `trio-mcp tasks` looks after the task, with
    the id that was printed; its questions wait for `trio-mcp tasks result`. A server that is started for the call ends
    with the call, and its tasks with the server, unless `trio-mcp run --tasks` keeps them.

    Exit status: 0; 1 when the tool failed; 2 when TARGET, TOOL or an argument is wrong; 3 when there is no connection,
    or the connection was lost; 4 when the server answers with an error; 5 when the time is over; 6 when the server
    wants a token, and there is no good one; 130 after Ctrl-C, 128 plus the number of any other signal.
    """
    from ..errands.arguments import object_typed
    from ..errands.calling import Calling, StartingTask

    typed = None if given is None else object_typed(given)
    calling = Calling(tool=tool, pairs=arguments, given=typed, raw=raw)
    return StartingTask(calling=calling) if as_task else calling
