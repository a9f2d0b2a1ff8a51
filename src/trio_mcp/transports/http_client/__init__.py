"""The HTTP/1.1 client: requests to one origin, over connections that are kept while idle, without knowledge of MCP."""
