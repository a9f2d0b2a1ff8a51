"""trio-mcp over Streamable HTTP."""

from functools import partial

import trio
from marking import listening
from trio_mcp_tools import server

from trio_mcp import serve_http


async def main():
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve_http, server, port=0))
        listening(listeners[0].socket.getsockname()[1])


trio.run(main)
