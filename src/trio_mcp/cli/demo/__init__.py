"""``trio-mcp demo``: the server, and what is done with it."""
