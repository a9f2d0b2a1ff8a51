"""MCP servers and hosts in programs that run asyncio."""
