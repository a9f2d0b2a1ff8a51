"""``trio-mcp demo``: the server, and the calls that are made to it."""
