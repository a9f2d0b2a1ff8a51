"""Utilities for trio tasks, threads and time limits. They don't depend on MCP."""
