"""A host of ``mcp``, 1.x or 2.x, that connects in one task and closes in another: closing_elsewhere.py COMMAND...

It prints the error of the close, and how often its event loop ran while the program slept.
"""

import asyncio
import json
import sys
from contextlib import AsyncExitStack

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


class CountingLoop(asyncio.SelectorEventLoop):
    passes = 0

    def _run_once(self) -> None:
        self.passes += 1
        super()._run_once()


async def connect(stack: AsyncExitStack) -> None:
    parameters = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])
    read, write = await stack.enter_async_context(stdio_client(parameters))
    session = await stack.enter_async_context(ClientSession(read, write))
    await session.initialize()


async def main(loop: CountingLoop) -> None:
    stack = AsyncExitStack()
    await loop.create_task(connect(stack))
    error = None
    try:
        await loop.create_task(stack.aclose())
    except RuntimeError as raised:
        error = str(raised)
    before = loop.passes
    await asyncio.sleep(0.5)
    print(json.dumps([error, loop.passes - before]))


loop = CountingLoop()
loop.run_until_complete(main(loop))
