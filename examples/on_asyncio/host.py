"""A host on asyncio with a server in another process: ``python host.py``.

A cancel of a task, here by a timeout, stops the handler in the process of the server.
"""

import asyncio
import sys

import trio

from trio_mcp import RequestContext, Server, aio, run

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
            print("stopped:", ctx.cancellation.cause.value, file=sys.stderr, flush=True)


async def main() -> None:
    """Call the tool, and leave the call at its first progress."""
    begun = asyncio.Event()
    command = [sys.executable, __file__, "serve"]
    async with aio.open_stdio(command, stderr=sys.stdout) as client:
        call = asyncio.create_task(client.call_tool("report", on_progress=lambda _: begun.set()))
        await begun.wait()
        call.cancel("the user has changed their mind")
        try:
            await call
        except asyncio.CancelledError:
            print("the call was cancelled", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        run(server)
    else:
        asyncio.run(main())
