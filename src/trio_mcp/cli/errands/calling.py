"""call: call a tool of a server, or start it as a task."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import attrs

from ...client.client import Client
from ...protocol.fields import JSONObject
from ...protocol.revisions import Revision
from ...protocol.types.tools import CallToolResult
from ...runtime.on_progress import OnProgress
from ..reporting import say
from ..statuses import ENDED_WELL, TOOL_FAILED
from ..terminal.printable import printable
from ..terminal.tool_results import show_result
from .arguments import arguments_typed
from .errand import Errand, found


@attrs.define(kw_only=True)
class Calling(Errand[CallToolResult]):
    """The errand that calls a tool. `prepare` raises `NotOffered` and `WrongArgument`."""

    tool: str
    pairs: Sequence[str]
    given: JSONObject | None
    raw: bool
    arguments: JSONObject = attrs.field(init=False)
    """The arguments, once `prepare` has converted them."""

    async def prepare(self, client: Client) -> None:
        """Find the tool, and convert the arguments as its schema requires."""
        declared = client.server_capabilities.tools is not None
        tool = await found("tool", self.tool, client.list_tools(), declared)
        self.arguments = arguments_typed(self.pairs, tool.input_schema, self.given)

    async def request(self, client: Client, on_progress: OnProgress) -> CallToolResult:
        """Call the tool."""
        return await client.call_tool(self.tool, self.arguments, on_progress=on_progress)

    def show(self, result: CallToolResult, revision: Revision) -> int:
        """Print the result; the result of a failed tool goes to standard error."""
        show_result(result, revision, raw=self.raw)
        if not result.is_error:
            return ENDED_WELL
        say(f"the tool {self.tool!r} failed")
        return TOOL_FAILED


@attrs.define(kw_only=True)
class StartingTask(Errand["str | CallToolResult"]):
    """The errand that calls a tool and does not wait for the end of the task. `prepare` raises as that of
    ``calling``."""

    calling: Calling
    answers_tasks = False

    async def prepare(self, client: Client) -> None:
        """Find the tool: see `Calling.prepare`."""
        await self.calling.prepare(client)

    async def request(self, client: Client, on_progress: OnProgress) -> str | CallToolResult:
        """Call the tool. Return the id of the task, or the result where the server answers at once."""
        task = await client.start_task(self.calling.tool, self.calling.arguments)
        return await task.result() if task.id is None else task.id

    def show(self, result: str | CallToolResult, revision: Revision) -> int:
        """Print the id, or the result."""
        if not isinstance(result, str):
            say("the server answered at once, without a task")
            return self.calling.show(result, revision)
        print(printable(result) if sys.stdout.isatty() else result)
        return ENDED_WELL
