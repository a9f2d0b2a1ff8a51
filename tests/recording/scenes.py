"""A server that uses every recorded feature, and a client that calls it."""

from __future__ import annotations

import sys
from typing import Any

import trio

from trio_mcp import Client, RequestContext, Server, serve_stdio
from trio_mcp.types import LogLevel

NOTE = "note://one"


def made(
    greeting: str = "hello", *, logs: str = "began", steps: int = 2, more_logs: int = 0, asks: bool = True
) -> Server:
    """Return the server, whose behaviour a test may change."""
    server = Server("s")

    @server.tool
    async def greet(name: str) -> str:
        return f"{greeting} {name}"

    @server.tool
    async def work(ctx: RequestContext) -> str:
        await ctx.log.info(logs)
        for number in range(more_logs):
            await ctx.log.info(f"more {number}")
        for step in range(1, steps + 1):
            ctx.progress(step, steps)
        return "done"

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        return str((await ctx.elicit("sure?", bool)).content) if asks else "not asked"

    @server.tool
    async def slow(ctx: RequestContext) -> None:
        ctx.progress(1, 2)
        await trio.sleep_forever()

    @server.resource(NOTE)
    async def note() -> str:
        return "a note"

    @server.tool
    async def change() -> None:
        server.resource_updated(NOTE)

    return server


class User:
    """A client's user, who answers yes, and remembers what was heard."""

    def __init__(self) -> None:
        self.changed = trio.Event()
        self.logged = 0

    def options(self, *, asks: bool = True) -> dict[str, Any]:
        return {
            "elicitation": (lambda _: {"value": True}) if asks else None,
            "on_resource_updated": lambda _: self.changed.set(),
            "on_log": self._log,
        }

    def _log(self, _: object) -> None:
        self.logged += 1

    async def use(self, client: Client) -> None:
        """Use all of the server."""
        assert [tool.name async for tool in client.list_tools()]
        await client.set_log_level(LogLevel.INFO)
        await client.call_tool("greet", {"name": "Ann"})
        await client.call_tool("work", on_progress=lambda _: None)
        with trio.CancelScope() as scope:
            await client.call_tool("slow", on_progress=lambda _: scope.cancel(reason="seen enough"))
        if client.settings.elicitation is not None:
            assert (await client.call_tool("ask")).text == "{'value': True}"
        await client.subscribe(NOTE)
        await client.call_tool("change")
        await self.changed.wait()
        await client.unsubscribe(NOTE)
        assert self.logged == 1


if __name__ == "__main__":
    trio.run(serve_stdio, made(*sys.argv[1:]))
