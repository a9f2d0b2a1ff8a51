"""``trio-mcp call`` calls a tool of a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import click

from ...classes import define
from ...client.client import Client
from ...protocol.fields import JSONObject
from ...protocol.revisions import Revision
from ...protocol.types.tools import CallToolResult
from ...runtime.calls import OnProgress
from ..arguments import arguments_typed, object_typed
from ..printable import say
from ..request import CommandRequest, found, print_line, show_result
from ..statuses import ENDED_WELL, TOOL_FAILED
from .options import TARGET, TOOL, TargetCommand, request_options


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("tool", type=TOOL)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "given", metavar="ARGS", help="The arguments as one JSON object; KEY=VALUE overrides a member.")
@click.option("--raw", is_flag=True, help="Print the whole result as JSON.")
@click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Save images, sounds and files of the result in this folder, which is made if need be.",
)
@click.option("--task", "as_task", is_flag=True, help="Start a task, print its id, and do not wait for its end.")
@request_options
def call(
    tool: str, arguments: tuple[str, ...], given: str | None, raw: bool, save: Path | None, as_task: bool
) -> CallTool | StartTask:
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
    typed = None if given is None else object_typed(given)
    calling = CallTool(tool=tool, pairs=arguments, given=typed, as_json=raw, save=save)
    return StartTask(calling=calling) if as_task else calling


@define(kw_only=True)
class CallTool(CommandRequest[CallToolResult]):
    """The request that calls a tool. `prepare` raises `NotOffered` and `WrongArgument`."""

    tool: str
    pairs: Sequence[str]
    given: JSONObject | None
    save: Path | None = None
    """The folder for images, sounds and files."""
    arguments: JSONObject = attrs.field(init=False)
    """The arguments, once `prepare` has converted them."""

    async def prepare(self, client: Client) -> None:
        """Find the tool, and convert the arguments as its schema requires."""
        declared = client.server_capabilities.tools is not None
        tool = await found("tool", self.tool, client.list_tools(), declared)
        self.arguments = arguments_typed(self.pairs, tool.input_schema, self.given)

    async def send(self, client: Client, on_progress: OnProgress) -> CallToolResult:
        """Call the tool."""
        return await client.call_tool(self.tool, self.arguments, on_progress=on_progress)

    def show(self, result: CallToolResult, revision: Revision) -> int:
        """Print the result; the result of a failed tool goes to standard error."""
        show_result(result, revision, raw=self.as_json, save=self.save, name=self.tool)
        if not result.is_error:
            return ENDED_WELL
        say(f"the tool {self.tool!r} failed")
        return TOOL_FAILED


@define(kw_only=True)
class StartTask(CommandRequest["str | CallToolResult"]):
    """The request that calls a tool and does not wait for the end of the task. `prepare` raises as that of
    ``calling``."""

    calling: CallTool
    answers_tasks = False

    async def prepare(self, client: Client) -> None:
        """Find the tool: see `CallTool.prepare`."""
        await self.calling.prepare(client)

    async def send(self, client: Client, on_progress: OnProgress) -> str | CallToolResult:
        """Call the tool. Return the id of the task, or the result where the server answers at once."""
        task = await client.start_task(self.calling.tool, self.calling.arguments)
        return await task.result() if task.id is None else task.id

    def show(self, result: str | CallToolResult, revision: Revision) -> int:
        """Print the id, or the result."""
        if not isinstance(result, str):
            say("the server answered at once, without a task")
            return self.calling.show(result, revision)
        print_line(result)
        return ENDED_WELL
