"""The command line: `commands` can be typed, and the modules here say what each does.

It needs the extra ``trio-mcp[cli]``.
"""
