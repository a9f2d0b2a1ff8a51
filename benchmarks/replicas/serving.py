"""``python -m benchmarks.replicas.serving STORAGE``: a replica. ``STORAGE``: ``alone``, a URL of Redis, or a file.

Handlers mark their begin by their number, and their end by the time of the system's monotonic clock, in nanoseconds.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

import trio

from trio_mcp import Limits, RequestContext, Server, serve_http
from trio_mcp.cli.serving_options import storage_at

from ..tasks.offering import MANY, offering
from . import ALONE

_MARKS = int(os.environ["BENCHMARK_MARKS"])
_FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
_LIMITS = Limits(
    max_server_requests=2 * MANY,
    max_in_flight=MANY,
    max_sessions=2 * MANY,
    max_subscriptions=MANY,
    max_parked=MANY,
    drain_timeout=0.0,
)


def _mark(kind: str, number: int) -> None:
    os.write(_MARKS, b"%b%d\n" % (kind.encode(), number))


def replica() -> Server:
    """The server, with those of `offering` and the tools and the resource that are measured here."""
    server = offering()

    @server.tool
    async def hang(number: int, ctx: RequestContext, asks: bool = False) -> None:
        try:
            if asks:
                await ctx.elicit("Go on?", _FORM)
            _mark("b", number)
            await trio.sleep_forever()
        finally:
            _mark("e", time.monotonic_ns())

    @server.tool
    async def greet(ctx: RequestContext) -> str:
        answer = await ctx.elicit("Who?", _FORM)
        return f"hello {(answer.content or {})['name']}"

    @server.tool
    async def change(uri: str) -> str:
        began = time.monotonic_ns()
        server.resource_updated(uri)
        return str(began)

    @server.resource("note://{name}")
    def note(name: str) -> str:
        return name

    return server


async def serve(storage: str) -> None:
    """Serve until a signal comes."""
    async with trio.open_nursery() as nursery:
        shared = None if storage == ALONE else storage_at(storage)
        listeners = await nursery.start(partial(serve_http, replica(), port=0, limits=_LIMITS, shared=shared))
        _mark("p", listeners[0].socket.getsockname()[1])


if __name__ == "__main__":
    trio.run(serve, sys.argv[1])
