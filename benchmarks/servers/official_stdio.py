"""The official ``mcp`` package over stdio: ``official_stdio.py asyncio|trio``."""

import sys

import anyio
from official_tools import server

anyio.run(server.run_stdio_async, backend=sys.argv[1])
