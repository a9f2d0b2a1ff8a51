# %% [markdown]
# An MCP server in a notebook of Jupyter, whose event loop runs already. Each `# %%` is a cell.

# %%
import asyncio
import os

import trio
import uvicorn

from trio_mcp import RequestContext, Server, http_app

server = Server("notebook")
rows = [1, 2, 3]


@server.tool
async def append(row: int) -> list[int]:
    """Append a row to the data of the notebook."""
    rows.append(row)
    return rows


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


# %% Serve in the background. Handlers run in a thread, so cells and calls don't wait for each other.
app = http_app(server, allowed_origins=[], allowed_hosts=["127.0.0.1"])
config = uvicorn.Config(app, port=int(os.environ.get("PORT", "8000")), timeout_graceful_shutdown=5)
uvicorn_server = uvicorn.Server(config)
serving = asyncio.create_task(uvicorn_server.serve())

# %% Other cells go on.
print("rows:", rows, flush=True)

# %% The end.
uvicorn_server.should_exit = True
await serving  # type: ignore # noqa: F704
