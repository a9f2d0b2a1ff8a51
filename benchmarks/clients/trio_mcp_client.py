"""A client written with trio-mcp."""

import sys

import trio
from orders import Rows, obey

from trio_mcp import open_stdio


async def main():
    rows = Rows()

    async def call(tool, arguments):
        return (await client.call_tool(tool, arguments)).text

    async with open_stdio(sys.argv[1:], era="legacy", on_log=lambda params: rows.got(params.data)) as client:
        await obey(call, rows, trio.to_thread.run_sync, trio.open_nursery)


trio.run(main)
