"""A client written with the official ``mcp`` package: ``official_client.py asyncio|trio SERVER...``."""

import sys
import warnings

import anyio
import anyio.to_thread
from mcp import Client, StdioServerParameters
from mcp_types import TextContent
from orders import Rows, obey

warnings.simplefilter("ignore")


async def main():
    rows = Rows()

    async def log(params):
        rows.got(params.data)

    async def call(tool, arguments):
        block = (await client.call_tool(tool, arguments)).content[0]
        assert isinstance(block, TextContent)
        return block.text

    server = StdioServerParameters(command=sys.argv[2], args=sys.argv[3:])
    async with Client(server, mode="legacy", logging_callback=log) as client:
        await obey(call, rows, anyio.to_thread.run_sync, anyio.create_task_group)


anyio.run(main, backend=sys.argv[1])
