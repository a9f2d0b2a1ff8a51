"""Serves the server of a file over stdio, as written for ``mcp`` 1.x or ``fastmcp`` 3.x: of_a_page.py FILE"""

import runpy
import sys

import anyio
from mcp.server.stdio import stdio_server


async def serve_low_level(server) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


names = runpy.run_path(sys.argv[1])
server = names.get("mcp") or names["server"]
if hasattr(server, "run_stdio_async"):
    anyio.run(server.run_stdio_async)
else:
    anyio.run(serve_low_level, server)
