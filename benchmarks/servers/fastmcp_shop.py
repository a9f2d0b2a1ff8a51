"""The shop, written with ``fastmcp``, on uvicorn and uvloop."""

from functools import partial

import anyio
from asyncio_shop import TOOLS
from fastmcp import FastMCP
from uvicorn_socket import OPTIONS, listening_socket

server = FastMCP("shop")
for tool in TOOLS:
    server.tool(tool, output_schema=None)

with listening_socket() as sock:
    run = partial(server.run_http_async, show_banner=False, log_level="ERROR", path="/mcp")
    run = partial(run, json_response=True, stateless_http=True, sockets=[sock], uvicorn_config=OPTIONS)
    anyio.run(run, backend_options={"use_uvloop": True})
