"""The server whose tasks are measured."""

from __future__ import annotations

import trio

from trio_mcp import RequestContext, Server, TaskSettings

__all__ = ["MANY", "offering"]

MANY = 50_000
"""More tasks than are measured: of one caller, and in all."""
_FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def offering(store: object = None) -> Server:
    """A server with tools that are tasks, and one that is none."""
    settings = TaskSettings(
        store=store,  # pyright: ignore[reportArgumentType]
        max_running=MANY,
        max_running_of_caller=MANY,
        max_kept=2 * MANY,
        max_kept_of_caller=2 * MANY,
    )
    server = Server("tasks", tasks=settings)

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool(task="required")
    async def echo_later(text: str) -> str:
        return text

    @server.tool(task="required")
    async def sleep(text: str, ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        await trio.sleep_forever()
        return text

    @server.tool(task="required")
    async def ask(text: str, ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        answer = await ctx.elicit("Which name?", _FORM)
        return f"{text}: {answer.content}"

    return server
