"""``fastmcp`` over Streamable HTTP, on uvicorn."""

from fastmcp_tools import server
from uvicorn_socket import serve

serve(server.http_app(path="/mcp"))
