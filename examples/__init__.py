"""Programs that use trio-mcp, in the repository and in no wheel: each folder is one, and says in its docstring how to
run it."""
