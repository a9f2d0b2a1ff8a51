"""A server that is killed. Arguments: the file of its tasks, the file that tells what they do, and the length of its
leases in seconds."""

from __future__ import annotations

import os
import sys
from typing import Any

import trio

from trio_mcp import RequestContext, Server, TaskSettings, serve_stdio
from trio_mcp.stores import SQLiteTaskStore

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}

store = SQLiteTaskStore(sys.argv[1], poll_interval=0.1)
told = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)
server = Server(
    "killed",
    tasks=TaskSettings(store=store, lease=float(sys.argv[3]), look_interval=0.2, max_attempts=10_000, ttl=600.0),
)


def tell(ctx: RequestContext, *words: object) -> None:
    """Append a line, whole whenever the process dies."""
    task: Any = ctx.task
    epoch = task._task.epoch
    os.write(told, (" ".join(map(str, (task.id, epoch, os.getpid(), *words))) + "\n").encode())


@server.tool(task="required")
async def once(seconds: float, ctx: RequestContext) -> str:
    assert ctx.task is not None
    await ctx.task.start()
    tell(ctx, "once", "runs")
    await trio.sleep(seconds)
    return "once"


@server.tool(task="required", on_restart="again")
async def again(seconds: float, ctx: RequestContext) -> str:
    assert ctx.task is not None
    await ctx.task.start()
    tell(ctx, "again", "runs")
    await trio.sleep(seconds)
    return "again"


@server.tool(task="required", on_restart="resume")
async def resume(seconds: float, ctx: RequestContext) -> str:
    assert ctx.task is not None
    await ctx.task.start()
    done = ctx.task.restored or 0
    tell(ctx, "resume", "runs", done)
    for step in range(done, 5):
        await trio.sleep(seconds / 5)
        await ctx.task.checkpoint(step + 1)
        tell(ctx, "resume", "kept", step + 1)
    return "resume"


@server.tool(task="required", on_restart="again")
async def ask(seconds: float, ctx: RequestContext) -> str:
    assert ctx.task is not None
    await ctx.task.start()
    tell(ctx, "ask", "runs")
    first = await ctx.elicit("Who?", NAME)
    await trio.sleep(seconds)
    second = await ctx.elicit("And who else?", NAME)
    return f"{(first.content or {})['name']} {(second.content or {})['name']}"


if __name__ == "__main__":
    trio.run(serve_stdio, server)
