"""The server's side of HTTP/1.1, without knowledge of MCP: it turns bytes into requests and answers into bytes, serves
one connection, and keeps events for clients that reconnect."""
