"""The command line: ``trio-mcp demo`` and ``trio-mcp run``. It needs the extra ``trio-mcp[cli]``."""
