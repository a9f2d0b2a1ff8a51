"""``fastmcp`` over stdio."""

from fastmcp_tools import server

server.run(show_banner=False, log_level="ERROR")
