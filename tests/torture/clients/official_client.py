"""The client that ``trio-mcp torture --client`` tests, made with the official ``mcp`` package."""

import sys

import anyio
from mcp import ClientSession, StdioServerParameters, stdio_client


async def main() -> None:
    parameters = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        while (step := (await session.call_tool("next")).content[0].text) != "end":
            name, seconds = step.split()
            try:
                await session.call_tool(name, read_timeout_seconds=float(seconds))
            except Exception as error:
                print(error, file=sys.stderr)


anyio.run(main)
