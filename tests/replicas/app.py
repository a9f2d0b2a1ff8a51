"""The server of a fleet, for ``trio-mcp run``. Its argument is the port of a Redis that nobody kills: there stands what
the tools have done, wherever they ran and however they ended."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import trio

from trio_mcp import Limits, RequestContext, Server, TaskSettings

LEASE = 2.0
"""Seconds, of a task."""
NAME = {"type": "object", "properties": {"name": {"type": "string"}}}

server = Server(
    "fleet",
    limits=Limits(drain_delay=2.0, drain_timeout=5.0),
    tasks=TaskSettings(lease=LEASE, look_interval=0.5, poll_interval=0.2, max_attempts=10_000, ttl=600.0),
)
journal = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
answers = journal.makefile("rb")


def tell(key: str, *words: object) -> None:
    """Append a line to the list ``key``: when this returns, it stays there."""
    parts = [b"RPUSH", key.encode(), " ".join(map(str, words)).encode()]
    journal.sendall(b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
    assert answers.readline().startswith(b":")


@server.tool
async def pid(seconds: float = 0.0) -> int:
    """The process, after some time."""
    await trio.sleep(seconds)
    return os.getpid()


@server.tool
async def ask(ctx: RequestContext) -> str:
    """Ask the client, and say who asked and who was answered: the same process."""
    tell("asked", os.getpid())
    answer = await ctx.elicit("Who?", NAME)
    return f"{os.getpid()} {(answer.content or {})['name']}"


@server.tool(replay=True)
async def ask_anywhere(ctx: RequestContext) -> str:
    """Ask the client; any process goes on."""
    tell("asked", os.getpid())
    answer = await ctx.elicit("Who?", NAME)
    return f"{os.getpid()} {(answer.content or {})['name']}"


@server.tool
async def hang(name: str, ctx: RequestContext, asks: bool = False) -> None:
    """Wait until cancelled, and tell so: with ``asks``, for an answer."""
    tell(f"hang:{name}", "began", os.getpid())
    ctx.progress(1)
    try:
        if asks:
            await ctx.elicit("Who?", NAME)
        await trio.sleep_forever()
    finally:
        tell(f"hang:{name}", "ended", os.getpid())


@server.tool
async def count(steps: int, seconds: float, ctx: RequestContext) -> int:
    """Tell of each step, in order."""
    for step in range(1, steps + 1):
        await trio.sleep(seconds)
        ctx.progress(step, steps)
    return os.getpid()


@server.tool(task="required", on_restart="resume")
async def work(steps: int, seconds: float, ctx: RequestContext) -> str:
    """A task in steps. Each run is told, and each step that is kept."""
    assert ctx.task is not None
    await ctx.task.start()
    task: Any = ctx.task
    owner = f"{task._task.epoch} {os.getpid()}"
    done = ctx.task.restored or 0
    tell(f"task:{ctx.task.id}", owner, "runs", done)
    for step in range(done + 1, steps + 1):
        await trio.sleep(seconds)
        await ctx.task.checkpoint(step)
        tell(f"task:{ctx.task.id}", owner, "kept", step)
    return owner


@server.resource("test://{name}")
async def thing(name: str) -> str:
    return name


@server.tool
async def touch(name: str) -> int:
    """Tell that a resource has changed, and live on for long enough to have told the others."""
    server.resource_updated(f"test://{name}")
    await trio.sleep(0.3)
    return os.getpid()


@server.tool
async def session(ctx: RequestContext) -> str:
    """The session of the call."""
    return str(ctx.session_id)
