"""Concurrency: what trio tasks, threads and time limits need, without any knowledge of MCP."""
