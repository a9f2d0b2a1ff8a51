"""The server that ``trio-mcp torture`` tests, made with ``fastmcp``."""

import logging
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager

import anyio
from fastmcp import Context, FastMCP
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel

warnings.simplefilter("ignore")
server = FastMCP("torture")
running = 0


@contextmanager
def counted() -> Generator[None]:
    global running
    running += 1
    try:
        yield
    finally:
        running -= 1


class Answer(BaseModel):
    value: str


@server.tool(output_schema=None)
async def fast() -> str:
    return "fine"


@server.tool(name="running", output_schema=None)
async def count_running() -> str:
    return str(running)


@server.tool(output_schema=None)
async def slow(ctx: Context) -> str:
    with counted():
        for step in range(1, 601):
            await ctx.report_progress(step, 600)
            await anyio.sleep(0.05)
    return "done"


@server.tool(output_schema=None)
async def ask(ctx: Context) -> str | InputRequiredResult:
    if ctx.input_responses is not None:
        return str(ctx.input_responses["which"].content["value"])
    if ctx.request_context.protocol_version >= "2026":
        form = ElicitRequestFormParams(message="Which value?", requested_schema=Answer.model_json_schema())
        return InputRequiredResult(input_requests={"which": ElicitRequest(params=form)})
    with counted():
        answer = await ctx.elicit("Which value?", Answer)
    return answer.data.value if answer.action == "accept" else answer.action


@server.tool(output_schema=None)
async def flood(ctx: Context) -> str:
    for step in range(1, 10_001):
        await ctx.report_progress(step, 10_000)
    return "done"


@server.tool(output_schema=None)
async def logs(ctx: Context) -> str:
    for level in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
        await ctx.log(f"a message at {level}", level)
    return "done"


@server.tool(output_schema=None)
async def spawn() -> str:
    await anyio.run_process(["sleep", "60"])
    return "done"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    if len(sys.argv) > 1:
        server.run("http", show_banner=False, port=int(sys.argv[1]))
    else:
        server.run(show_banner=False)
