"""Bridging: runs trio in a thread, for callers that use asyncio (`trio_mcp.aio`) or no event loop
(`trio_mcp.blocking`)."""
