"""The HTTP/1.1 side of a server, which knows nothing of MCP: bytes to requests, answers to bytes, one connection, and
the log of events for clients that come back.
"""
