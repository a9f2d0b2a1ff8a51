"""The server that ``trio-mcp torture`` tests, made with trio-mcp. With a port, it serves over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

import attrs
import trio

from trio_mcp import RequestContext, Server, run

server = Server("torture")
running = 0


@contextmanager
def counted() -> Generator[None]:
    global running
    running += 1
    try:
        yield
    finally:
        running -= 1


@attrs.frozen
class Answer:
    value: str


@server.tool
async def fast() -> str:
    return "fine"


@server.tool(name="running")
async def count_running() -> str:
    return str(running)


@server.tool
async def slow(ctx: RequestContext) -> str:
    with counted():
        for step in range(1, 601):
            ctx.progress(step, 600)
            await trio.sleep(0.05)
    return "done"


@server.tool
async def ask(ctx: RequestContext) -> str:
    with counted():
        answer = await ctx.elicit("Which value?", Answer)
    found = answer.as_(Answer)
    return answer.action if found is None else found.value


@server.tool
async def flood(ctx: RequestContext) -> str:
    for step in range(1, 10_001):
        ctx.progress(step, 10_000)
    return "done"


@server.tool
async def logs(ctx: RequestContext) -> str:
    for level in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
        await getattr(ctx.log, level)(f"a message at {level}")
    return "done"


@server.tool
async def spawn() -> str:
    await trio.run_process(["sleep", "60"])
    return "done"


if __name__ == "__main__":
    run(server, "http", port=int(sys.argv[1])) if len(sys.argv) > 1 else run(server)
