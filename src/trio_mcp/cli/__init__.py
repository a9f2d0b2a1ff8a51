"""The command line, one command per module of that name. It needs the extra ``trio-mcp[cli]``."""
