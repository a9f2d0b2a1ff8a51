"""Runs one MCP connection in trio tasks: handles incoming requests, matches replies with outgoing requests, and limits
everything that can grow.

`connection` combines the parts. Each of the other modules contains one part.
"""
