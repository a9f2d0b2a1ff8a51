"""Bridging: trio in a thread, for callers that run asyncio (`trio_mcp.aio`) or no loop (`trio_mcp.blocking`)."""
