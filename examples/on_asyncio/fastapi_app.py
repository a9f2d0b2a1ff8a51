"""An MCP server in a FastAPI application under uvicorn: ``python fastapi_app.py 8000``.

A client that disconnects cancels the handler of its call.
"""

import sys

import trio
import uvicorn
from fastapi import FastAPI

from trio_mcp import RequestContext, Server, http_app

server = Server("reports")


@server.tool
async def report(ctx: RequestContext) -> str:
    """Write a report, which takes an hour."""
    try:
        ctx.progress(0, 100)
        await trio.sleep(3600)
        return "a report"
    finally:
        if ctx.cancellation is not None:
            print("stopped:", ctx.cancellation.cause.value, flush=True)


mcp = http_app(server, allowed_origins=["http://localhost:3000"], allowed_hosts=["127.0.0.1"])
app = FastAPI(lifespan=mcp.lifespan)


@app.get("/health")
async def health() -> dict[str, str]:
    """Answer as the rest of the application does, on asyncio."""
    return {"status": "well"}


app.mount("/", mcp)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), timeout_graceful_shutdown=5)
