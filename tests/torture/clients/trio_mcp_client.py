"""The client that ``trio-mcp torture --client`` tests, made with trio-mcp."""

import sys

import trio

from trio_mcp import MCPError, open_stdio


async def main() -> None:
    async with open_stdio(sys.argv[1:]) as client:
        while (step := (await client.call_tool("next")).text) != "end":
            name, seconds = step.split()
            with trio.move_on_after(float(seconds)):
                try:
                    await client.call_tool(name)
                except MCPError as error:
                    print(error, file=sys.stderr)


trio.run(main)
