"""Clients and groups for asyncio programs: `open_stdio`, `open_http`, `open_websocket`, `open_tcp`, `open_unix`,
`open_memory`, `open_group`.

    async with aio.open_stdio(["python", "server.py"]) as client:
        async with asyncio.timeout(10):
            result = await client.call_tool("search", {"text": "trio"})

trio runs in a thread of its own, so clients aren't bound to a task: any task may call, and any task may close them.

Cancelling a task that waits for a call, by `asyncio.timeout` for example, cancels the call on the server; the task
continues when that cancel has been sent. Handlers and callbacks may be asyncio functions: they run in the event loop
that opened the client, and are cancelled if the server cancels its request. Plain handlers run in worker threads, plain
callbacks in the event loop. Clients that you don't close are closed with their event loop.

All names, parameters and types are those of `trio_mcp`.
"""

from __future__ import annotations

from .client import (
    Catalogue,
    Changes,
    Client,
    Group,
    GroupTask,
    LoadedSkill,
    RunningTask,
    open_group,
    open_http,
    open_memory,
    open_stdio,
    open_tcp,
    open_unix,
    open_websocket,
)

__all__ = [
    "Catalogue",
    "Changes",
    "Client",
    "Group",
    "GroupTask",
    "LoadedSkill",
    "RunningTask",
    "open_group",
    "open_http",
    "open_memory",
    "open_stdio",
    "open_tcp",
    "open_unix",
    "open_websocket",
]
