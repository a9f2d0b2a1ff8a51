"""A server with tasks, written with ``fastmcp`` and its extension: the tasks of 2026-07-28."""

from datetime import timedelta
from functools import partial

import anyio
from fastmcp import Context, FastMCP
from fastmcp.dependencies import Progress
from fastmcp.exceptions import ToolError
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from journal import note
from mcp import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from serving import serve

server = FastMCP("peer", version="7.0")
server.add_extension(TasksExtension())


# Seldom enough for a server; here somebody waits.
OPTIONAL, REQUIRED = (TaskConfig(mode, timedelta(milliseconds=100)) for mode in ("optional", "required"))
FORM = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


@server.tool(task=OPTIONAL)
async def work(steps: int, progress: Progress = Progress()) -> str:  # noqa: B008 - how it is asked for
    await progress.set_total(steps)
    for step in range(1, steps + 1):
        await progress.set_message(f"step {step}")
        await progress.increment()
        await anyio.sleep(0.1)
    return f"{steps} steps"


@server.tool(task=OPTIONAL)
async def ask_user(ctx: Context) -> str | InputRequiredResult:
    """A task asks by returning its questions: it runs again with the answers."""
    if ctx.input_responses is None:
        form = ElicitRequestFormParams(message="Which colour?", requested_schema=FORM)
        return InputRequiredResult(input_requests={"which": ElicitRequest(params=form)}, request_state="asked")
    answer = ctx.input_responses["which"]
    return f"{answer.action} {answer.content['colour']}"


@server.tool(task=OPTIONAL)
async def fail() -> str:
    raise ToolError("no luck today")


@server.tool(task=OPTIONAL)
async def crash() -> str:
    raise MCPError(-32099, "broken")


@server.tool(task=REQUIRED)
async def hang(progress: Progress = Progress()) -> str:  # noqa: B008 - how it is asked for
    note("hang began")
    await progress.set_message("hanging")
    try:
        await anyio.sleep_forever()
    finally:
        note("hang ended")


@server.tool
async def plain() -> str:
    return "plain"


serve(partial(server.run, show_banner=False), server.http_app)
