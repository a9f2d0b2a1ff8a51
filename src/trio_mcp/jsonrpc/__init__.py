"""JSON-RPC 2.0: messages, their codec and the error codes, without knowledge of MCP."""
