"""A client written with ``fastmcp``."""

import sys
import warnings

import anyio
import anyio.to_thread
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
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

    async with Client(StdioTransport(sys.argv[1], sys.argv[2:]), log_handler=log) as client:
        await obey(call, rows, anyio.to_thread.run_sync, anyio.create_task_group)


anyio.run(main)
