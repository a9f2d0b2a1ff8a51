"""The types of the MCP specification: one class for each concept, grouped as in the specification."""
