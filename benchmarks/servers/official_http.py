"""The official ``mcp`` package over Streamable HTTP, on uvicorn: ``official_http.py events|json``."""

import sys

from official_tools import server
from uvicorn_socket import serve

serve(server.streamable_http_app(json_response=sys.argv[1] == "json"))
