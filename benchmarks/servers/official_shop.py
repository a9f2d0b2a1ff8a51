"""The shop, written with the official ``mcp`` package, on uvicorn and uvloop."""

import anyio
import uvicorn
from asyncio_shop import TOOLS
from mcp.server.mcpserver import MCPServer
from uvicorn_socket import OPTIONS, listening_socket

server = MCPServer("shop", log_level="ERROR")
for tool in TOOLS:
    server.tool(structured_output=False)(tool)

app = server.streamable_http_app(json_response=True, stateless_http=True)
with listening_socket() as sock:
    config = uvicorn.Config(app, **OPTIONS)
    anyio.run(uvicorn.Server(config).serve, [sock], backend_options={"use_uvloop": True})
