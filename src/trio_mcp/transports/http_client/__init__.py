"""The HTTP/1.1 client, independent of MCP: it sends requests to one origin, and reuses idle connections."""
