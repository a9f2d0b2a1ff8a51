"""The server that ``trio-mcp torture`` tests, made with the official ``mcp`` package."""

import logging
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel

warnings.simplefilter("ignore")
server = MCPServer("torture", log_level="ERROR")
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


def which() -> Elicit[Answer]:
    return Elicit("Which value?", Answer)


@server.tool(structured_output=False)
async def fast() -> str:
    return "fine"


@server.tool(name="running", structured_output=False)
async def count_running() -> str:
    return str(running)


@server.tool(structured_output=False)
async def slow(ctx: Context) -> str:
    with counted():
        for step in range(1, 601):
            await ctx.report_progress(step, 600)
            await anyio.sleep(0.05)
    return "done"


@server.tool(structured_output=False)
async def ask(answer: Annotated[Answer, Resolve(which)]) -> str:
    return answer.value


@server.tool(structured_output=False)
async def flood(ctx: Context) -> str:
    for step in range(1, 10_001):
        await ctx.report_progress(step, 10_000)
    return "done"


@server.tool(structured_output=False)
async def logs(ctx: Context) -> str:
    for level in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
        await ctx.log(level, f"a message at {level}")
    return "done"


@server.tool(structured_output=False)
async def spawn() -> str:
    await anyio.run_process(["sleep", "60"])
    return "done"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
