"""A server that is told to end: its tasks are in the file of the first argument; the second is a way to serve."""

from __future__ import annotations

import sys

import trio

from trio_mcp import Limits, RequestContext, Server, TaskSettings, serve_http, serve_stdio
from trio_mcp.stores import SQLiteTaskStore

store = SQLiteTaskStore(sys.argv[1])
server = Server("ending", tasks=TaskSettings(store=store), limits=Limits(drain_timeout=0.3))


@server.tool(task="required")
async def once(seconds: float, ctx: RequestContext) -> str:
    assert ctx.task is not None
    await ctx.task.start()
    await trio.sleep(seconds)
    return "once"


@server.tool(task="required", on_restart="again")
async def again(seconds: float, ctx: RequestContext) -> str:
    assert ctx.task is not None
    await ctx.task.start()
    await trio.sleep(seconds)
    return "again"


async def over_http() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(lambda *, task_status: serve_http(server, port=0, task_status=task_status))
        print(listeners[0].socket.getsockname()[1], flush=True)


if __name__ == "__main__":
    if sys.argv[2] == "stdio":
        trio.run(serve_stdio, server)
    else:
        trio.run(over_http)
