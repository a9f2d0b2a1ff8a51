"""A server whose calls may be tasks, and clients of it, message by message, that know the extension."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import trio
from tests.interaction.memory_peer import MODERN, MemoryPeer, connected
from trio.testing import wait_all_tasks_blocked

from trio_mcp import CodedError, RequestContext, Server, TaskSettings, ToolError

EXTENSION = "io.modelcontextprotocol/tasks"
KNOWS = {"elicitation": {}, "extensions": {EXTENSION: {}}}
"""Capabilities of a client that knows tasks, and can be asked."""
NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


def slow_server(**settings: Any) -> Server:
    """A server with a tool for each end that a call can have."""
    server = Server("slow", tasks=TaskSettings(**settings))

    @server.tool(task="optional")
    async def sleep(seconds: float) -> str:
        await trio.sleep(seconds)
        return f"slept {seconds:g}"

    @server.tool(task="required")
    async def work(seconds: float = 0) -> str:
        await trio.sleep(seconds)
        return "done"

    @server.tool(task="required")
    async def fail() -> str:
        raise ToolError("it went wrong")

    @server.tool(task="required")
    async def break_() -> str:
        raise CodedError(-32050, "broken", {"why": "age"})

    @server.tool
    async def greet() -> str:
        return "hello"

    @server.tool(task="required")
    async def ask(names: int, ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        answers: list[str] = []

        async def one(number: int) -> None:
            answer = await ctx.elicit(f"name {number}?", NAME)
            answers.append((answer.content or {})["name"])

        async with trio.open_nursery() as nursery:
            for number in range(names):
                nursery.start_soon(one, number)
        return ", ".join(sorted(answers))

    return server


@asynccontextmanager
async def knowing(server: Server, capabilities: dict[str, Any] = KNOWS, **options: Any) -> AsyncGenerator[MemoryPeer]:
    """A modern peer of ``server`` that knows tasks."""
    async with connected(server, MODERN, capabilities, **options) as peer:
        yield peer


async def task_of(peer: MemoryPeer, tool: str, arguments: dict[str, Any] | None = None) -> str:
    """Call a tool, which is answered with a task; the id of the task."""
    created = await peer.call(tool, arguments)
    assert created["resultType"] == "task", created
    return created["taskId"]


async def about(peer: MemoryPeer, method: str, task_id: str, **params: Any) -> dict[str, Any]:
    """Send a request about a task, and return its result."""
    reply = await peer.request(method, {"taskId": task_id, **params})
    assert "result" in reply, reply
    return reply["result"]


async def refused(peer: MemoryPeer, method: str, task_id: Any = "t", **params: Any) -> dict[str, Any]:
    """Send a request about a task, and return the error."""
    reply = await peer.request(method, {"taskId": task_id, **params})
    assert "error" in reply, reply
    return reply["error"]


async def state_of(peer: MemoryPeer, task_id: str) -> dict[str, Any]:
    """Let all that can happen without time passing happen, and return the state of the task."""
    await wait_all_tasks_blocked()
    return await about(peer, "tasks/get", task_id)
