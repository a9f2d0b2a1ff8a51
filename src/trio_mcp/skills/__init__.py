"""Skills, for servers and for clients (SEP-2640). Front matter is parsed with PyYAML, from the extra
``trio-mcp[skills]``."""
