"""trio-mcp as an ASGI application, on uvicorn: the server runs in trio's thread beside the event loop."""

import uvicorn
from trio_mcp_tools import server
from uvicorn_socket import OPTIONS, listening_socket

from trio_mcp import http_app

app = http_app(server, allowed_origins=[], allowed_hosts=["127.0.0.1"])
with listening_socket() as sock:
    uvicorn.Server(uvicorn.Config(app, **OPTIONS)).run([sock])
