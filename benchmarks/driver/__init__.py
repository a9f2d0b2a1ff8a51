"""The neutral side: raw pipes and sockets, the standard library alone, no MCP library and no async framework."""
