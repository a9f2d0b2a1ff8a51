"""What holds for ``ctx.state`` on any storage that replicas share."""

from __future__ import annotations

from functools import partial
from typing import Any

import trio
from tests.serving.http.protection import call, issued, protected
from tests.serving.http.scenes import in_memory

from trio_mcp import RequestContext, Server
from trio_mcp.stores import SharedStorage

__all__ = ["keeper", "said", "state_is_shared_by_replicas"]

SECRET = b"0123456789abcdef0123456789abcdef"


def keeper(name: str = "keeper", **options: Any) -> Server:
    """A server that keeps a text, and counts, for each caller."""
    server = Server(name, expose_errors=True, **options)

    @server.tool
    async def put(ctx: RequestContext, value: str) -> str:
        return str(bool(await ctx.state.set("text", value)))

    @server.tool
    async def look(ctx: RequestContext) -> str:
        return str(await ctx.state.get("text"))

    @server.tool
    async def count(ctx: RequestContext) -> str:
        while True:
            found = await ctx.state.read("count")
            number = (found.value or 0) + 1
            if await ctx.state.set("count", number, expected=found.version):
                return str(number)

    return server


async def said(endpoint: Any, token: str, tool: str, **arguments: Any) -> str:
    reply = (await call(endpoint, token, tool, **arguments)).json
    return reply["result"]["content"][0]["text"] if "result" in reply else reply["error"]["message"]


async def state_is_shared_by_replicas(storage: SharedStorage, secrets: Any = ()) -> None:
    """Two replicas, and then a third one after their end, see one state for each principal."""
    auth = protected(issued())
    opened = partial(in_memory, shared=storage, auth=auth)
    async with opened(keeper(secrets=secrets)) as one, opened(keeper(secrets=secrets)) as two:
        assert await said(one, "alice-1", "put", value="hidden words") == "True"
        assert await said(two, "alice-2", "look") == "hidden words"
        assert await said(two, "bob-1", "look") == "None"
        numbers = list[str]()

        async def count(endpoint: Any) -> None:
            numbers.append(await said(endpoint, "bob-1", "count"))

        async with trio.open_nursery() as nursery:
            for each in (one, two) * 10:
                nursery.start_soon(count, each)
        assert sorted(map(int, numbers)) == list(range(1, 21))
    async with opened(keeper(secrets=secrets)) as three:
        assert await said(three, "alice-1", "look") == "hidden words"
    async with opened(keeper("another")) as other:
        assert await said(other, "alice-1", "look") == "None"
