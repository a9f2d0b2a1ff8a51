"""An MCP server in a Starlette application under hypercorn on asyncio: ``python starlette_app.py 8000``.

The handler runs on asyncio as well, for a library that needs it. A client that disconnects cancels its task.
"""

import asyncio
import sys
from typing import Any

from hypercorn.asyncio import serve  # pyright: ignore[reportUnknownVariableType]
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from trio_mcp import RequestContext, Server, http_app

server = Server("reports", asyncio=True)


@server.tool
async def report(ctx: RequestContext) -> str:
    """Write a report, which takes an hour."""
    try:
        ctx.progress(0, 100)
        await asyncio.sleep(3600)
        return "a report"
    finally:
        if ctx.cancellation is not None:
            print("stopped:", ctx.cancellation.cause.value, flush=True)


async def health(_: Request) -> PlainTextResponse:
    """Answer as the rest of the application does."""
    return PlainTextResponse("well")


mcp = http_app(server, allowed_origins=["http://localhost:3000"], allowed_hosts=["127.0.0.1"])
app: Any = Starlette(routes=[Route("/health", health), Mount("/", mcp)], lifespan=mcp.lifespan)

if __name__ == "__main__":
    config = Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]
    asyncio.run(serve(app, config))
