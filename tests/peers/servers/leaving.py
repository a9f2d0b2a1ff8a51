"""A server of ``mcp``, 1.x or 2.x, over stdio, whose tools outlast a client that leaves: leaving.py

Each tool writes "begun" to standard error before it waits.
"""

import sys
import time

import anyio

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("leaving")


def begin() -> None:
    print("begun", file=sys.stderr, flush=True)


@server.tool()
async def wait() -> str:
    begin()
    await anyio.sleep_forever()
    return "done"


@server.tool()
async def answer_anyway() -> str:
    begin()
    try:
        await anyio.sleep_forever()
    except BaseException:  # as a bare `except:` around a request to another service does
        return "done"


@server.tool()
def block() -> str:
    begin()
    time.sleep(3600)
    return "done"


server.run()
