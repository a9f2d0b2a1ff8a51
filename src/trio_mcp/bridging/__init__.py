"""Runs trio in a thread of its own, for callers that use asyncio (`trio_mcp.aio`) or no event loop
(`trio_mcp.blocking`)."""
