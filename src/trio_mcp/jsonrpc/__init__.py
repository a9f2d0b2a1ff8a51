"""JSON-RPC 2.0: message types, encoding and decoding, and error codes. This package doesn't know MCP."""
