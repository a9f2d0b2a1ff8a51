"""The server side of HTTP/1.1, without knowledge of MCP. It converts bytes to requests and answers to bytes, serves one
connection, and keeps events for clients that reconnect."""
