"""The workload of the much-quoted comparison of fifteen MCP servers: a shop on Redis and an HTTP API, with 50 users."""
