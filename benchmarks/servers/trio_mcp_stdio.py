"""trio-mcp over stdio."""

import trio
from trio_mcp_tools import server

from trio_mcp import serve_stdio

trio.run(serve_stdio, server)
