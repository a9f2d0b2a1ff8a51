"""The command line: `commands` holds the commands as they are typed, and the modules here do their work.

It needs the extra ``trio-mcp[cli]``.
"""
