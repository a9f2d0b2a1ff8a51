"""Clients and groups for scripts and notebooks, without ``async``: `open_stdio`, `open_http`, `open_websocket`,
`open_tcp`, `open_unix`, `open_memory`, `open_group`.

    with blocking.open_stdio(["python", "server.py"]) as client:
        result = client.call_tool("search", {"text": "trio"})

trio runs in a thread of its own. Each method blocks the thread that calls it, even if an event loop runs there, as in
notebooks.

Ctrl-C cancels only the call that the main thread waits for, also on the server. `KeyboardInterrupt` is raised when the
call has ended; the client stays usable. Handlers and callbacks must be plain functions: they run in worker threads, and
may make calls themselves. ``on_progress`` runs in the thread that calls. The end of the interpreter closes everything
that is open. All names, parameters and types are those of `trio_mcp`.
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
