"""The HTTP/1.1 client, without knowledge of MCP: it sends requests to one origin, and keeps idle connections."""
