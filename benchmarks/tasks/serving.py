"""``python -m benchmarks.tasks.serving stdio|http [FILE]``: the server that is measured. ``FILE``: where it keeps
tasks; without it, in memory."""

from __future__ import annotations

import os
import sys
from functools import partial

import trio

from trio_mcp import serve_http, serve_stdio
from trio_mcp.stores.sqlite_store import SQLiteTaskStore

from .offering import offering


async def serve(way: str, store: SQLiteTaskStore | None) -> None:
    """Serve until the client is gone, or a signal comes."""
    server = offering(store)
    if way == "stdio":
        await serve_stdio(server)
        return
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve_http, server, port=0))
        os.write(int(os.environ["BENCHMARK_MARKS"]), b"p%d\n" % listeners[0].socket.getsockname()[1])


if __name__ == "__main__":
    trio.run(serve, sys.argv[1], SQLiteTaskStore(sys.argv[2]) if sys.argv[2:] else None)
