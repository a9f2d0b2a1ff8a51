"""The command line: `commands` holds the commands with their options, and the modules here do the work.

The command line needs the extra ``trio-mcp[cli]``.
"""
