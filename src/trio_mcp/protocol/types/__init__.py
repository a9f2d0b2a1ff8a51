"""The types of the MCP specification: one class for each concept, in modules grouped as in the specification."""
