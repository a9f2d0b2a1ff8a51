"""call: call a tool of a server."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ...client.client import Client
from ...protocol.fields import JSONObject
from ...protocol.revisions import Revision
from ...protocol.types.tools import CallToolResult
from ...runtime.on_progress import OnProgress
from ..endings import say
from ..statuses import ENDED_WELL, TOOL_FAILED
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
