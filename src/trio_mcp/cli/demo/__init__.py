"""``trio-mcp demo``: the server, and the calls to the server."""
