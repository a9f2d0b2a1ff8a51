"""Clients and groups for asyncio programs: `open_stdio`, `open_http`, `open_websocket`, `open_tcp`, `open_unix`,
`open_memory`, `open_group`.

    async with aio.open_stdio(["python", "server.py"]) as client:
        async with asyncio.timeout(10):
            result = await client.call_tool("search", {"text": "trio"})

trio runs in a thread of its own, so nothing depends on the task in which a client was opened: any task may call, and
any other may close. Cancelling a task that waits for a call, by `asyncio.timeout` for example, cancels the call in the
server, and the task goes on when that cancel is on its way. Handlers and callbacks may be asyncio functions, which run
in the event loop that opened the client, and are cancelled when the server cancels its request; plain handlers run in
worker threads, plain callbacks in the event loop. Clients that nobody closes end with their event loop.

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
