"""A server whose tool cleans up for a while, run as a process."""

import os
import signal

import trio

from trio_mcp import CancelAcknowledged, RequestContext, Server, serve_stdio

server = Server("slow", extensions=[CancelAcknowledged()])


@server.tool
async def slow(ctx: RequestContext, cleanup: float = 0.0, dies: bool = False) -> str:
    ctx.progress(1)
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(cleanup)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
    return ""


if __name__ == "__main__":
    trio.run(serve_stdio, server)
