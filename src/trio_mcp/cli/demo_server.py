"""The server that ``trio-mcp demo`` runs: its tools show progress, elicitation, tasks, and cleanup after a
cancellation.

It is an ordinary server, and a good example: ``trio-mcp run server.py`` serves it to any client.
"""

import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import msgspec
import trio

from trio_mcp import RequestContext, Server, TaskSettings, serve_stdio
from trio_mcp.types import ToolAnnotations


class EndTime:
    """A future for the time at which the handler or child task of `watch` ended. Tasks can wait for it."""

    def __init__(self) -> None:
        self._at = 0.0
        self._reached = trio.Event()

    def mark(self) -> None:
        """Record the current time as the time at which the work has ended."""
        self._at = time.monotonic()
        self._reached.set()

    async def time(self) -> float:
        """Wait until the work has ended, and return the time of its end, in seconds of the machine's monotonic
        clock."""
        await self._reached.wait()
        return self._at


class LastWatch:
    """Two end times for the latest call of the demo tool `watch`: of the tool's handler, and of the child task that the
    handler starts. The tool `last_watch` returns them."""

    def __init__(self) -> None:
        self.handler, self.child_task = EndTime(), EndTime()
        self.reason: str | None = None


@asynccontextmanager
async def memory(server: Server) -> AsyncGenerator[LastWatch]:
    """The lifespan of the demo server: yields an object that all requests share as ``ctx.lifespan``."""
    yield LastWatch()


server = Server(
    "demo",
    "1.0.0",
    instructions="Packs archives and watches folders.",
    lifespan=memory,
    tasks=TaskSettings(poll_interval=0.2),
)
FileCount = Annotated[int, msgspec.Meta(ge=1, le=1000, description="How many files there are")]


@server.tool
async def pack(files: FileCount, ctx: RequestContext) -> str:
    """Pack files into an archive. This tool only simulates the work, and sleeps for 0.1 s for each file."""
    await ctx.log.info(f"packing {files} files")
    for done in range(1, files + 1):
        await trio.sleep(0.1)  # if the client cancels the call, this raises `trio.Cancelled`
        ctx.progress(done, total=files, message=f"photo-{done:02}.jpg")
        if done * 2 == files:
            await ctx.log.notice("half of it is done")
    return f"packed {files} files"


@dataclass
class Label:
    """The form that the user fills in."""

    name: Annotated[str, msgspec.Meta(min_length=1, description="Name of the archive")] = "holidays"


@server.tool
async def label(ctx: RequestContext) -> str:
    """Ask the user for the name of the archive."""
    answer = (await ctx.elicit("The archive needs a name.", Label)).as_(Label)
    return f'the archive is called "{answer.name}"' if answer is not None else "the archive has no name"


@server.tool(task="optional")
async def develop(photos: int, ctx: RequestContext) -> str:
    """Develop photos, as a task: the call needn't wait for the end."""
    if ctx.task is not None:
        await ctx.task.start()
    for done in range(1, photos + 1):
        await trio.sleep(0.1)
        ctx.progress(done, total=photos, message=f"{done} of {photos} photos")
    return f"developed {photos} photos"


@server.tool
async def watch(folder: str, ctx: RequestContext) -> None:
    """Watch a folder until the call is cancelled."""
    last: LastWatch = ctx.lifespan
    # The child task belongs to the request, and is cancelled together with it.
    ctx.nursery.start_soon(look_around, last)
    await ctx.log.info(f"watching {folder}/ until you have seen enough")
    try:
        await trio.sleep_forever()
    finally:
        last.reason = ctx.cancellation.reason if ctx.cancellation is not None else None
        last.handler.mark()


async def look_around(last: LastWatch) -> None:
    """A child task that the tool `watch` starts, and that runs until the call is cancelled."""
    try:
        while True:  # noqa: ASYNC110 - a real server would look at the folder here
            await trio.sleep(0.05)
    finally:
        last.child_task.mark()


@dataclass
class WatchEnd:
    """When and why the latest call of the tool `watch` ended. Times are in seconds of the machine's monotonic clock."""

    process: int
    handler_ended: float
    child_task_ended: float
    reason: str | None


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def last_watch(ctx: RequestContext) -> WatchEnd:
    """Return the times at which the latest call of the tool `watch` and its child task ended, and the reason."""
    last: LastWatch = ctx.lifespan
    return WatchEnd(os.getpid(), await last.handler.time(), await last.child_task.time(), last.reason)


if __name__ == "__main__":
    trio.run(serve_stdio, server)
