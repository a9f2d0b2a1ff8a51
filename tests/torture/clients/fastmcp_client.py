"""The client that ``trio-mcp torture --client`` tests, made with ``fastmcp``."""

import sys

import anyio
from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def main() -> None:
    async with Client(StdioTransport(sys.argv[1], sys.argv[2:])) as client:
        while (step := (await client.call_tool("next")).content[0].text) != "end":
            name, seconds = step.split()
            try:
                await client.call_tool(name, timeout=float(seconds), raise_on_error=False)
            except Exception as error:
                print(error, file=sys.stderr)


anyio.run(main)
