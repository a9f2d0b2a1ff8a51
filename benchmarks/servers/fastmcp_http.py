"""``fastmcp`` over Streamable HTTP, on uvicorn."""

from functools import partial

import anyio
from fastmcp_tools import server
from uvicorn_socket import OPTIONS, listening_socket

with listening_socket() as sock:
    run = partial(server.run_http_async, show_banner=False, log_level="ERROR", path="/mcp")
    anyio.run(partial(run, sockets=[sock], uvicorn_config=OPTIONS))
