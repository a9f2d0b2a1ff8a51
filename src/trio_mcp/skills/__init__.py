"""Skills, for servers and for clients (SEP-2640). Their front matter is read with PyYAML, of the extra
``trio-mcp[skills]``."""
