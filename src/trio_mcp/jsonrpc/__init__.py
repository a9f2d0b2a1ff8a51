"""JSON-RPC 2.0: messages, their codec and the error codes. Knows nothing of MCP."""
