"""The official ``mcp`` package over Streamable HTTP, on uvicorn: ``official_http.py events|json``."""

import sys

import anyio
import uvicorn
from official_tools import server
from uvicorn_socket import OPTIONS, listening_socket

app = server.streamable_http_app(json_response=sys.argv[1] == "json")
with listening_socket() as sock:
    anyio.run(uvicorn.Server(uvicorn.Config(app, **OPTIONS)).serve, [sock])
