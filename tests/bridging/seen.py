"""A server that shows what its handlers saw, and ways to run asyncio programs and to look for threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import Cancellation, RequestContext, Server

__all__ = ["Seen", "run", "threads", "time_out_when"]


class Seen:
    """A server, and what its handlers saw."""

    def __init__(self) -> None:
        self.server = Server("seen")
        self.began = threading.Event()
        self.ended = threading.Event()
        self.cancelled: list[Cancellation | None] = []
        self.running = 0
        self.server.tool(self.echo)
        self.server.tool(self.wait)
        self.server.tool(self.count)
        self.server.tool(self.ask)
        self.server.tool(self.forget)

    async def echo(self, text: str) -> str:
        return text

    async def wait(self, ctx: RequestContext) -> None:
        self.running += 1
        self.began.set()
        try:
            await trio.sleep_forever()
        finally:
            self.running -= 1
            self.cancelled.append(ctx.cancellation)
            self.ended.set()

    async def count(self, to: int, ctx: RequestContext) -> int:
        for number in range(to):
            ctx.progress(number, to)
            await trio.lowlevel.checkpoint()
        return to

    async def forget(self, tool: str) -> None:
        self.server.remove_tool(tool)

    async def ask(self, ctx: RequestContext) -> str:
        answer = await ctx.elicit("Name?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return str(answer)


def threads() -> list[threading.Thread]:
    """The threads of ours that run trio."""
    return [thread for thread in threading.enumerate() if thread.name == "trio-mcp"]


async def time_out_when(began: threading.Event, call: Coroutine[Any, Any, Any]) -> None:
    """Await ``call`` in an `asyncio.timeout` that expires when ``began`` is set."""

    async def expire(limit: asyncio.Timeout) -> None:
        assert await asyncio.to_thread(began.wait, PATIENCE)
        limit.reschedule(asyncio.get_running_loop().time())

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            expiring = asyncio.create_task(expire(limit))
            await call
    await expiring


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``main`` in an event loop of its own, and return its result. No thread of ours may be left."""
    try:
        return asyncio.run(main())
    finally:
        assert threads() == []
