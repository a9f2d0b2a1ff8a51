"""The command line: `commands` holds each command in a file of its own, and the modules here hold the shared parts.

The command line needs the extra ``trio-mcp[cli]``.
"""
