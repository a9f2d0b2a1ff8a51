"""The server side of HTTP/1.1, independent of MCP. It parses requests, writes responses, serves one connection, and
stores events for clients that reconnect."""
